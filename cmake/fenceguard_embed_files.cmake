# Run by fenceguard_embed() with cmake -P. Bytes are written one by one: a string literal has a length
# limit, and no escape of SQL or Lua can go wrong.
set(arrays "")
set(entries "")
set(index 0)
foreach(file IN LISTS FILES)
  cmake_path(GET file FILENAME name)
  file(READ "${file}" hex HEX)
  string(LENGTH "${hex}" length)
  math(EXPR length "${length} / 2")
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
  # One more byte than the file has, so that an empty file makes no empty array.
  string(APPEND arrays "constexpr char bytes_${index}[] = {\n${bytes}'\\0'};\n")
  string(APPEND entries "    {\"${name}\", {bytes_${index}, ${length}}},\n")
  math(EXPR index "${index} + 1")
endforeach()

cmake_path(GET HEADER FILENAME header_name)
file(WRITE "${HEADER}" "// Generated at build time.
#pragma once

#include <span>
#include <string_view>

namespace ${NAMESPACE} {

struct embedded_file {
  std::string_view name;
  std::string_view text;
};

std::span<embedded_file const> embedded_files() noexcept;

}  // namespace ${NAMESPACE}
")
file(WRITE "${SOURCE}" "// Generated at build time.
#include \"${header_name}\"

namespace ${NAMESPACE} {
namespace {

${arrays}
constexpr embedded_file files[] = {
${entries}};

}  // namespace

std::span<embedded_file const> embedded_files() noexcept { return files; }

}  // namespace ${NAMESPACE}
")
