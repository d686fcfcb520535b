#pragma once

#include <concepts>
#include <cstddef>
#include <fenceguard/core/fencing_token.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <pqxx/pqxx>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace fenceguard::postgres {

/// One argument of a statement ($1, $2, …) in PostgreSQL's text form, or NULL. Converts implicitly
/// from strings, numbers, bool, fencing_token, nlohmann::json, std::optional of these and nullptr.
/// The server infers the type from the statement.
class parameter {
 public:
  parameter(std::nullptr_t) noexcept {}                                     // NOLINT(*-explicit-*)
  parameter(std::string text) : text_{std::move(text)} {}                   // NOLINT(*-explicit-*)
  parameter(std::string_view text) : text_{std::string{text}} {}            // NOLINT(*-explicit-*)
  parameter(char const* text) : text_{std::string{text}} {}                 // NOLINT(*-explicit-*)
  parameter(bool value) : text_{value ? "true" : "false"} {}                // NOLINT(*-explicit-*)
  parameter(fencing_token token) : text_{std::to_string(token.value())} {}  // NOLINT(*-explicit-*)
  parameter(nlohmann::json const& value) : text_{value.dump()} {}           // NOLINT(*-explicit-*)

  template <class T>
  requires(std::integral<T> && !std::same_as<T, bool> && !std::same_as<T, char>) parameter(T value)
      : text_{std::to_string(value)} {}  // NOLINT(*-explicit-*)

  template <std::floating_point T>
  parameter(T value) : text_{pqxx::to_string(value)} {}  // NOLINT(*-explicit-*)

  template <class T>
  parameter(std::optional<T> const& value) {  // NOLINT(*-explicit-*)
    if (value) text_ = parameter{*value}.text_;
  }

  /// The text form; nothing for NULL.
  [[nodiscard]] std::optional<std::string> const& text() const noexcept { return text_; }

 private:
  std::optional<std::string> text_{};
};

using parameters = std::vector<parameter>;

}  // namespace fenceguard::postgres
