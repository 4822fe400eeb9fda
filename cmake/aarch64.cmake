# aarch64.cmake: toolchain file for a 64-bit Arm build with Debian's cross compiler, run under qemu-user.
#
#     cmake -S . -B build-aarch64 -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DINVAR_SYSROOT=DIRECTORY -DINVAR_STATIC=ON
#
# INVAR_SYSROOT holds Debian's arm64 -dev packages, unpacked (tests/aarch64/check.sh fetches them). The C library is the
# cross compiler's.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64;-L;/usr/aarch64-linux-gnu;-E;LD_LIBRARY_PATH=/usr/aarch64-linux-gnu/lib)

list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES INVAR_SYSROOT)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${INVAR_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${INVAR_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${INVAR_SYSROOT})
# gcc 12 for Arm has an internal error in its vectorizer (vect_transform_reduction) in two of the tests.
set(CMAKE_C_FLAGS_INIT "-fno-tree-vectorize -isystem ${INVAR_SYSROOT}/usr/include -isystem ${INVAR_SYSROOT}/usr/include/aarch64-linux-gnu")
