# install.cmake: installed files and packages.

set(INVAR_LIBRARY_TARGETS invar_static)
if(TARGET invar_shared)
  list(APPEND INVAR_LIBRARY_TARGETS invar_shared)
endif()
install(TARGETS ${INVAR_LIBRARY_TARGETS}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET invar)
  install(TARGETS invar RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(DEFINED SKBUILD) # next to the interpreter
    install(TARGETS invar RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
  endif()
endif()
if(TARGET invar_mpi)
  install(TARGETS invar_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/invar)
endif()
install(FILES ${INVAR_HEADERS} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(INVAR_PC_CUDA "")
if(INVAR_WITH_CUDA)
  set(INVAR_PC_CUDA "${INVAR_CUDART} -ldl -lrt ")
endif()
# The prefix is relative to the .pc file, so `cmake --install --prefix` and moved trees work; not possible with an absolute
# library folder.
set(INVAR_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH INVAR_PC_UP "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" INVAR_PC_UP "${INVAR_PC_UP}")
  set(INVAR_PC_PREFIX "\${pcfiledir}/${INVAR_PC_UP}")
endif()
# Without the shared library every program needs the static one's dependencies.
set(INVAR_PC_PRIVATE .private)
set(INVAR_PC_LIBS "")
set(INVAR_PC_LIBS_PRIVATE "${INVAR_PC_CUDA}-pthread -lm")
if(NOT TARGET invar_shared)
  set(INVAR_PC_PRIVATE "")
  set(INVAR_PC_LIBS " ${INVAR_PC_LIBS_PRIVATE}")
  set(INVAR_PC_LIBS_PRIVATE "")
endif()
configure_file(cmake/invar.pc.in invar.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/invar.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# For CMake's find_package(invar).
include(CMakePackageConfigHelpers)
set(INVAR_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/invar)
set(INVAR_CONFIG_CUDA "")
if(INVAR_WITH_CUDA)
  set(INVAR_CONFIG_CUDA "${INVAR_CUDART};dl;rt")
endif()
configure_package_config_file(cmake/invar-config.cmake.in invar-config.cmake INSTALL_DESTINATION ${INVAR_CMAKE_DIR}
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(invar-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/invar-config.cmake ${CMAKE_BINARY_DIR}/invar-config-version.cmake
  DESTINATION ${INVAR_CMAKE_DIR})

install(DIRECTORY models/tiny-math DESTINATION ${CMAKE_INSTALL_DATADIR}/invar/models)

install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
# The program writes its own completions, which needs a machine that runs it.
if(NOT CMAKE_CROSSCOMPILING)
  set(INVAR_COMPLETIONS)
  foreach(shell bash zsh fish)
    set(file ${CMAKE_BINARY_DIR}/completions/${shell})
    add_custom_command(OUTPUT ${file} DEPENDS invar
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/completions
      COMMAND invar completion ${shell} > ${file})
    list(APPEND INVAR_COMPLETIONS ${file})
  endforeach()
  add_custom_target(completions ALL DEPENDS ${INVAR_COMPLETIONS})
  set(from ${CMAKE_BINARY_DIR}/completions)
  install(FILES ${from}/bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME invar)
  install(FILES ${from}/zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _invar)
  install(FILES ${from}/fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME invar.fish)
endif()

set(CPACK_PACKAGE_NAME invar)
set(CPACK_PACKAGE_VENDOR "the invar project")
set(CPACK_PACKAGE_CONTACT "the invar project")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "LLM engine whose answers are the same bits every time")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
include(CPack)
