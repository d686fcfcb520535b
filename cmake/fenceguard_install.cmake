include(CMakePackageConfigHelpers)

set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/fenceguard")

# One export set per component: a user of fenceguard::core alone needs neither libpqxx nor hiredis.
foreach(component IN LISTS FENCEGUARD_BUILT_COMPONENTS)
  install(TARGETS fenceguard_${component} EXPORT fenceguard-${component})
  install(
    EXPORT fenceguard-${component}
    NAMESPACE fenceguard::
    FILE fenceguard-${component}.cmake
    DESTINATION "${package_folder}")
endforeach()
install(TARGETS fenceguard_fenceguard EXPORT fenceguard-fenceguard)
install(
  EXPORT fenceguard-fenceguard
  NAMESPACE fenceguard::
  FILE fenceguard-fenceguard.cmake
  DESTINATION "${package_folder}")

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/fenceguard-config.cmake.in"
  "${PROJECT_BINARY_DIR}/package/fenceguard-config.cmake"
  INSTALL_DESTINATION "${package_folder}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  "${PROJECT_BINARY_DIR}/package/fenceguard-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(
  FILES "${PROJECT_BINARY_DIR}/package/fenceguard-config.cmake"
        "${PROJECT_BINARY_DIR}/package/fenceguard-config-version.cmake"
        "${PROJECT_SOURCE_DIR}/cmake/fenceguard_dependencies.cmake"
  DESTINATION "${package_folder}")

# The folder of the .pc file is known when it is read, so an installed tree can be moved.
cmake_path(SET pc_folder "/${CMAKE_INSTALL_LIBDIR}/pkgconfig")
cmake_path(RELATIVE_PATH pc_folder BASE_DIRECTORY "/" OUTPUT_VARIABLE pc_depth)
string(REGEX REPLACE "[^/]+" ".." pc_prefix "${pc_depth}")
set(pc_redis "hiredis")
if(FENCEGUARD_TLS)
  string(APPEND pc_redis ", openssl >= 1.1.1")
endif()
if(BUILD_SHARED_LIBS)
  set(pc_private "Requires.private: ${pc_redis}")
  set(pc_requires "libpqxx, nlohmann_json")
else()
  set(pc_private "")
  set(pc_requires "libpqxx, ${pc_redis}, nlohmann_json")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/fenceguard.pc.in" "${PROJECT_BINARY_DIR}/package/fenceguard.pc"
               @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/package/fenceguard.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/fenceguard" TYPE INCLUDE FILES_MATCHING PATTERN "*.hpp")
if(EXISTS "${PROJECT_SOURCE_DIR}/sql")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/sql" DESTINATION "${CMAKE_INSTALL_DATADIR}/fenceguard")
endif()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" TYPE DOC)
