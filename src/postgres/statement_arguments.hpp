#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fenceguard::postgres {

// One statement whose arguments stand in its text, for the simple protocol, which has none.
struct inlined_statement {
  std::string text;   // without a semicolon
  bool writes;        // INSERT, UPDATE, DELETE or MERGE
  bool returns_rows;  // a query, or a write with RETURNING
};

struct inlining_options {
  // standard_conforming_strings is off: a backslash escapes in every string.
  bool backslash_escapes = false;
};

// Puts each literal (quoted already) in the place of its $1, $2, … wherever that is an argument and
// not part of a string, a quoted name, a name or a comment.
//
// Throws invalid_request where the statement is not one query or write, where a string, comment or
// bracket does not end, and where arguments and literals do not match.
inlined_statement inline_arguments(std::string_view statement,
                                   std::vector<std::string> const& literals,
                                   inlining_options options);

}  // namespace fenceguard::postgres
