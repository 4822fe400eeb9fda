# python.cmake: the library of the Python package, with the third-party libraries inside where they are installed as
# static ones. pyproject.toml builds a wheel from the component "python".
#
# INVAR_PYTHON_PREBUILT, a build folder, makes a wheel of its library and program without compiling: for tests.
set(INVAR_PYTHON_PREBUILT "" CACHE PATH "build folder whose library and program go into the wheel")

if(INVAR_PYTHON_PREBUILT)
  set(INVAR_PYTHON_LIBRARY ${INVAR_PYTHON_PREBUILT}/libinvar_python.so)
  add_custom_target(invar_python)
  add_custom_target(invar)
  install(PROGRAMS ${INVAR_PYTHON_PREBUILT}/invar DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
else()
  set(INVAR_PYTHON_LIBRARIES)
  foreach(name jansson pcre2-8 utf8proc crypto event_extra event_core)
    find_library(INVAR_STATIC_${name} lib${name}.a)
    if(NOT INVAR_STATIC_${name})
      message(STATUS "python: lib${name}.a not found: the package's library needs the shared libraries")
      set(INVAR_PYTHON_LIBRARIES PkgConfig::DEPS)
      break()
    endif()
    list(APPEND INVAR_PYTHON_LIBRARIES ${INVAR_STATIC_${name}})
  endforeach()

  # Debian's static libraries are compiled for executables (-fPIE): they address data of the C library directly, which a
  # shared library cannot. static_streams.c gives the three streams that they use an address inside the library. Their
  # own symbols are local by the version script.
  set(INVAR_PYTHON_SOURCE ${CMAKE_SOURCE_DIR}/python/static_streams.c)
  set(INVAR_PYTHON_EXPORTS ${CMAKE_SOURCE_DIR}/python/exports.map)
  add_library(invar_python MODULE ${INVAR_OBJECTS} ${INVAR_PYTHON_SOURCE})
  set_target_properties(invar_python PROPERTIES LINKER_LANGUAGE C LINK_DEPENDS ${INVAR_PYTHON_EXPORTS})
  target_link_libraries(invar_python PRIVATE invar_flags ${INVAR_PYTHON_LIBRARIES} ${INVAR_CUDA_LIBRARIES} dl
    Threads::Threads m)
  target_link_options(invar_python PRIVATE -Wl,--wrap=stdin,--wrap=stdout,--wrap=stderr -Wl,-z,defs -Wl,-z,text
    -Wl,--version-script=${INVAR_PYTHON_EXPORTS})
  set(INVAR_PYTHON_LIBRARY $<TARGET_FILE:invar_python>)
endif()

if(DEFINED SKBUILD)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  set(INVAR_PYTHON_CUDA False)
  if(INVAR_WITH_CUDA)
    set(INVAR_PYTHON_CUDA True)
  endif()
  list(TRANSFORM INVAR_HEADERS PREPEND ${CMAKE_SOURCE_DIR}/ OUTPUT_VARIABLE headers)
  set(writer ${CMAKE_SOURCE_DIR}/python/write_ffi.py)
  set(declarations ${CMAKE_BINARY_DIR}/_ffi.py)
  execute_process(COMMAND ${Python_EXECUTABLE} ${writer} ${headers} ${declarations} ${INVAR_PYTHON_CUDA}
    RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "python: ${writer} failed")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers} ${writer})
  install(FILES ${declarations} DESTINATION invar COMPONENT python)
  install(PROGRAMS ${INVAR_PYTHON_LIBRARY} DESTINATION invar RENAME libinvar.so COMPONENT python)
endif()
