# install.cmake: what an installed invar consists of, and the packages made of it.

set(INVAR_LIBRARY_TARGETS invar_static)
if(TARGET invar_shared)
  list(APPEND INVAR_LIBRARY_TARGETS invar_shared)
endif()
install(TARGETS ${INVAR_LIBRARY_TARGETS}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET invar)
  install(TARGETS invar RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(TARGET invar_mpi)
  install(TARGETS invar_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/invar)
endif()
install(FILES include/invar.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(INVAR_PC_CUDA "")
if(INVAR_WITH_CUDA)
  set(INVAR_PC_CUDA "${INVAR_CUDART} -ldl -lrt ")
endif()
configure_file(cmake/invar.pc.in invar.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/invar.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(DIRECTORY models/tiny-math DESTINATION ${CMAKE_INSTALL_DATADIR}/invar/models)

install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
if(EXISTS ${CMAKE_SOURCE_DIR}/completions)
  install(FILES completions/invar.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME invar)
  install(FILES completions/_invar DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES completions/invar.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
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
