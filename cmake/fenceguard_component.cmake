# What all components have in common. A component's folder does add_library(fenceguard_<name> ...) and
# links what it needs; the top level calls fenceguard_component(<name>).
function(fenceguard_component name)
  set(target fenceguard_${name})
  fenceguard_compile_options(${target})
  target_include_directories(
    ${target}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE "${PROJECT_SOURCE_DIR}/src")
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} VERSION ${PROJECT_VERSION}
                                             SOVERSION ${PROJECT_VERSION_MAJOR})
  add_library(fenceguard::${name} ALIAS ${target})
endfunction()

# fenceguard::fenceguard: what <fenceguard/fenceguard.hpp> includes.
function(fenceguard_umbrella)
  add_library(fenceguard_fenceguard INTERFACE)
  set_target_properties(fenceguard_fenceguard PROPERTIES EXPORT_NAME fenceguard)
  foreach(component IN LISTS ARGN)
    if(TARGET fenceguard_${component})
      target_link_libraries(fenceguard_fenceguard INTERFACE fenceguard_${component})
    endif()
  endforeach()
  add_library(fenceguard::fenceguard ALIAS fenceguard_fenceguard)
endfunction()
