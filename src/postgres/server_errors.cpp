#include "postgres/server_errors.hpp"

#include <algorithm>
#include <charconv>

#include "postgres/libpqxx.hpp"

namespace fenceguard::postgres {
namespace {

// libpq writes `SEVERITY:  message`, or `SEVERITY:  SQLSTATE: message` at verbosity verbose. The
// severity is a word of the server's language.
std::string_view without_severity(std::string_view text) {
  std::size_t const mark = text.substr(0, 24).find(":  ");
  if (mark == std::string_view::npos) return text;
  text.remove_prefix(mark + 3);
  if (text.size() > 7 && text.substr(5, 2) == ": " &&
      std::all_of(text.begin(), text.begin() + 5,
                  [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); })) {
    text.remove_prefix(7);
  }
  return text;
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

bool consume(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

std::optional<fencing_token> consume_token(std::string_view& text) {
  std::int64_t value = 0;
  auto const [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || value < fencing_token::min_value ||
      value > fencing_token::max_value) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return fencing_token{value};
}

template <class Error>
std::exception_ptr made(std::string const& message) {
  return std::make_exception_ptr(Error{message});
}

std::exception_ptr own_class_error(std::string const& sqlstate, std::string const& message) {
  if (sqlstate == "TF001") {
    if (auto const stale = parse_stale(message)) {
      return std::make_exception_ptr(
          stale_token{stale->resource, stale->presented, stale->current});
    }
    return nullptr;  // raised by somebody else's code: passes as the server sent it
  }
  if (sqlstate == "TF002") return made<unguarded_write>(message);
  if (sqlstate == "TF003") return made<key_reused>(message);
  if (sqlstate == "TF004") return made<server_promoted>(message);
  if (sqlstate == "TF005") return made<in_progress>(message);
  if (sqlstate == "TF006") return made<fence_busy>(message);
  return nullptr;
}

// Only the first line is the server's own words: the next ones quote the statement.
bool names_the_schema(std::string const& message) {
  std::string_view const line = first_line(message);
  return line.find("fenceguard.") != std::string_view::npos ||
         line.find("\"fenceguard\"") != std::string_view::npos;
}

}  // namespace

std::optional<stale_refusal> parse_stale(std::string_view message) {
  message = without_severity(message);
  if (!consume(message, "stale token: presented ")) return std::nullopt;
  auto const presented = consume_token(message);
  if (!presented || !consume(message, ", current ")) return std::nullopt;
  auto const current = consume_token(message);
  if (!current || !consume(message, ", resource ")) return std::nullopt;
  // A name may hold line breaks; libpq's next field begins with a capital word and ":  ".
  std::size_t end = message.size();
  for (std::size_t at = message.find('\n'); at != std::string_view::npos;
       at = message.find('\n', at + 1)) {
    std::string_view const next = message.substr(at + 1);
    if (next.empty() || first_line(next).substr(0, 24).find(":  ") != std::string_view::npos) {
      end = at;
      break;
    }
  }
  return stale_refusal{std::string{message.substr(0, end)}, *presented, *current};
}

std::string server_message(std::exception const& failed) {
  std::string_view text = without_severity(failed.what());
  text = text.substr(0, text.find("\nCONTEXT:  "));
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  return std::string{text};
}

std::exception_ptr own_error(std::exception const& failed, failed_call what) {
  std::string const sqlstate = libpqxx::sqlstate_of(failed);
  if (sqlstate.empty()) return nullptr;
  std::string const message = server_message(failed);
  if (sqlstate.starts_with("TF")) return own_class_error(sqlstate, message);
  if (what == failed_call::callers_statement) return nullptr;
  // 22P05: JSON holds \u0000, which PostgreSQL's text cannot.
  if (sqlstate == "22023" || sqlstate == "22P05") return made<invalid_request>(message);
  if ((sqlstate == "3F000" || sqlstate == "42883" || sqlstate == "42P01") &&
      names_the_schema(message)) {
    return made<schema_mismatch>(
        "the database has no fenceguard schema, or an older one: run "
        "`fenceguard migrate` (the server said: " +
        std::string{first_line(message)} + ")");
  }
  return nullptr;
}

}  // namespace fenceguard::postgres
