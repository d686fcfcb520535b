#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fenceguard::postgres {

// The fields of a composite value in the text form that the server sends, NULL as nothing:
// `(1,,"a ""quoted"" one")`. Throws std::invalid_argument where it is none.
// https://www.postgresql.org/docs/current/rowtypes.html#ROWTYPES-IO-SYNTAX
std::vector<std::optional<std::string>> read_record(std::string_view text);

}  // namespace fenceguard::postgres
