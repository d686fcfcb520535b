# What a build does when nobody says otherwise. A project that includes fenceguard keeps its own choices.
if(PROJECT_IS_TOP_LEVEL)
  get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
  if(NOT CMAKE_BUILD_TYPE AND NOT multi_config)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
  endif()
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    find_program(FENCEGUARD_CCACHE ccache)
    if(FENCEGUARD_CCACHE)
      set(CMAKE_CXX_COMPILER_LAUNCHER "${FENCEGUARD_CCACHE}")
    endif()
  endif()
endif()

# Language and warnings of fenceguard's own targets; nothing of it reaches a user's targets but C++20.
function(fenceguard_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(
    ${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                      $<$<BOOL:${FENCEGUARD_WERROR}>:-Werror>)
  # g++ 12 sees an overlap in every `"..." + std::string` that it inlines (GCC bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
endfunction()
