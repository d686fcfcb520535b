# fenceguard_embed(<target> NAMESPACE <namespace> HEADER <file name> FILES <file>...)
#
# Compiles the files' bytes into <target>. `#include "<file name>"` declares, in <namespace>,
#
#   struct embedded_file { std::string_view name; std::string_view text; };
#   std::span<embedded_file const> embedded_files() noexcept;
#
# in the order given; `name` is the file's name without its folder. Only <target> sees the header.
# A changed file is compiled in anew at the next build.
function(fenceguard_embed target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "NAMESPACE;HEADER" "FILES")
  foreach(required IN ITEMS NAMESPACE HEADER FILES)
    if(NOT arg_${required})
      message(FATAL_ERROR "fenceguard_embed(${target}): ${required} is missing")
    endif()
  endforeach()

  set(files "")
  foreach(file IN LISTS arg_FILES)
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE)
    list(APPEND files "${file}")
  endforeach()

  set(folder "${CMAKE_CURRENT_BINARY_DIR}/embedded")
  cmake_path(GET arg_HEADER STEM stem)
  set(header "${folder}/${arg_HEADER}")
  set(source "${folder}/${stem}.cpp")
  set(script "${PROJECT_SOURCE_DIR}/cmake/fenceguard_embed_files.cmake")
  add_custom_command(
    OUTPUT "${header}" "${source}"
    COMMAND "${CMAKE_COMMAND}" "-DNAMESPACE=${arg_NAMESPACE}" "-DHEADER=${header}"
            "-DSOURCE=${source}" "-DFILES=${files}" -P "${script}"
    DEPENDS ${files} "${script}"
    COMMENT "Embedding files into ${target}"
    VERBATIM)
  target_sources(${target} PRIVATE "${header}" "${source}")
  target_include_directories(${target} PRIVATE "${folder}")
endfunction()
