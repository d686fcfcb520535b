#include "postgres/statement_arguments.hpp"

#include <algorithm>
#include <array>
#include <fenceguard/core/errors.hpp>

namespace fenceguard::postgres {
namespace {

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool continues_name(char c) { return begins_name(c) || is_digit(c) || c == '$'; }
bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

std::string in_capitals(std::string_view word) {
  std::string capitals{word};
  for (char& c : capitals) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return capitals;
}

bool is_verb(std::string const& word) {
  constexpr std::array verbs{"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "VALUES", "TABLE"};
  return std::find(verbs.begin(), verbs.end(), word) != verbs.end();
}

// Reads a statement once, by the rules of PostgreSQL's scan.l, and copies it.
class inliner {
 public:
  inliner(std::string_view statement, std::vector<std::string> const& literals,
          inlining_options options)
      : text_{statement}, literals_{literals}, options_{options}, used_(literals.size(), false) {}

  inlined_statement run() && {
    while (at_ < text_.size() && !ended_) copy_next();
    require_end();
    auto const unused = std::find(used_.begin(), used_.end(), false);
    if (unused != used_.end()) {
      fail("argument $" + std::to_string(unused - used_.begin() + 1) + " is not used");
    }
    if (depth_ != 0) fail("a bracket does not end");
    if (verb_.empty()) {
      fail("it must be one SELECT, INSERT, UPDATE, DELETE, MERGE, VALUES or TABLE");
    }
    bool const writes = verb_ != "SELECT" && verb_ != "VALUES" && verb_ != "TABLE";
    return {.text = std::move(out_), .writes = writes, .returns_rows = !writes || returning_};
  }

 private:
  void copy_next() {
    char const c = text_[at_];
    if (copy_blank()) return;
    char const before = last_;
    last_ = c;
    if (c == '\'') {
      copy_string(options_.backslash_escapes);
    } else if (c == '"') {
      copy_delimited('"', "a quoted name");
    } else if (c == '$') {
      copy_dollar();
    } else if (begins_name(c)) {
      copy_word(before);
    } else if (c == ';') {
      ended_ = true;
    } else {
      copy_bracket(c);
      copy(1);
    }
  }

  void copy_bracket(char c) {
    if (c == '(' && depth_ == 0 && first_word_.empty() && verb_.empty()) verb_ = "SELECT";
    if (c == '(' || c == '[') ++depth_;
    if ((c == ')' || c == ']') && --depth_ < 0) fail("a bracket ends that did not begin");
  }

  // White space and comments; false where neither is next.
  bool copy_blank() {
    std::string_view const rest = text_.substr(at_);
    if (is_space(rest.front())) {
      copy(1);
    } else if (rest.starts_with("--")) {
      copy(std::min(rest.find_first_of("\n\r"), rest.size()));
    } else if (rest.starts_with("/*")) {
      copy_comment();
    } else {
      return false;
    }
    return true;
  }

  void copy_comment() {
    int depth = 0;
    do {
      std::string_view const rest = text_.substr(at_);
      if (rest.empty()) fail("a comment does not end");
      if (rest.starts_with("/*")) {
        ++depth;
        copy(2);
      } else if (rest.starts_with("*/")) {
        --depth;
        copy(2);
      } else {
        copy(1);
      }
    } while (depth > 0);
  }

  // A string, and those that continue it: after white space with a line break the next one belongs
  // to it and has the same escapes.
  void copy_string(bool escapes) {
    do {
      copy(1);
      for (bool open = true; open;) {
        if (at_ >= text_.size()) fail("a string does not end");
        char const c = text_[at_];
        if (c == '\\' && escapes) {
          copy(std::min<std::size_t>(2, text_.size() - at_));
        } else if (c == '\'' && text_.substr(at_).starts_with("''")) {
          copy(2);
        } else {
          copy(1);
          open = c != '\'';
        }
      }
    } while (copy_to_continuation());
  }

  bool copy_to_continuation() {
    std::size_t next = at_;
    bool line_break = false;
    while (next < text_.size()) {
      if (is_space(text_[next])) {
        line_break = line_break || text_[next] == '\n' || text_[next] == '\r';
        ++next;
      } else if (text_.substr(next).starts_with("--")) {
        next = std::min(text_.find_first_of("\n\r", next), text_.size());
      } else {
        break;
      }
    }
    if (!line_break || next >= text_.size() || text_[next] != '\'') return false;
    copy(next - at_);
    return true;
  }

  void copy_delimited(char delimiter, char const* what) {
    std::size_t const end = text_.find(delimiter, at_ + 1);
    if (end == std::string_view::npos) fail(std::string{what} + " does not end");
    copy(end + 1 - at_);  // a doubled delimiter is read as two in a row
  }

  void copy_dollar() {
    std::size_t end = at_ + 1;
    if (end < text_.size() && is_digit(text_[end])) {
      put_argument();
      return;
    }
    if (end < text_.size() && begins_name(text_[end])) {
      while (end < text_.size() && continues_name(text_[end]) && text_[end] != '$') ++end;
    }
    if (end >= text_.size() || text_[end] != '$') {
      copy(1);  // the server will say what it thinks of it
      return;
    }
    std::string const tag{text_.substr(at_, end + 1 - at_)};
    std::size_t const close = text_.find(tag, end + 1);
    if (close == std::string_view::npos) fail("a string in " + tag + " does not end");
    copy(close + tag.size() - at_);
  }

  void put_argument() {
    std::size_t end = at_ + 1;
    std::size_t number = 0;
    while (end < text_.size() && is_digit(text_[end])) {
      number = number * 10 + static_cast<std::size_t>(text_[end] - '0');
      if (number > literals_.size()) break;
      ++end;
    }
    if (number == 0 || number > literals_.size()) {
      fail("there is no argument " + std::string{text_.substr(at_, end - at_)} + " among " +
           std::to_string(literals_.size()));
    }
    if (end < text_.size() && continues_name(text_[end])) {
      fail("argument $" + std::to_string(number) + " runs into a name");
    }
    used_[number - 1] = true;
    // In brackets it can neither continue a string nor be taken for one with a prefix.
    out_ += '(' + literals_[number - 1] + ')';
    at_ = end;
  }

  void copy_word(char before) {
    std::size_t end = at_;
    while (end < text_.size() && continues_name(text_[end])) ++end;
    std::string const word = in_capitals(text_.substr(at_, end - at_));
    copy(end - at_);
    if (word == "E" && at_ < text_.size() && text_[at_] == '\'') {
      copy_string(true);
      return;
    }
    if (depth_ > 0 || before == '.') return;
    // WITH says nothing yet of what follows it.
    if (verb_.empty() && is_verb(word) && (first_word_.empty() || first_word_ == "WITH")) {
      verb_ = word;
    }
    if (word == "RETURNING" && previous_word_ != "AS") returning_ = true;
    if (first_word_.empty()) first_word_ = word;
    previous_word_ = word;
  }

  // Nothing but white space, comments and semicolons may follow.
  void require_end() {
    std::string const statement = std::move(out_);
    while (at_ < text_.size()) {
      if (text_[at_] == ';') {
        ++at_;
      } else if (!copy_blank()) {
        fail("it holds more than one statement");
      }
    }
    out_ = statement;
  }

  void copy(std::size_t count) {
    out_ += text_.substr(at_, count);
    at_ += count;
  }

  [[noreturn]] static void fail(std::string const& why) {
    throw invalid_request{"the statement cannot be sent: " + why};
  }

  std::string_view text_;
  std::vector<std::string> const& literals_;
  inlining_options options_;
  std::vector<bool> used_;
  std::string out_{};
  std::size_t at_ = 0;
  int depth_ = 0;
  bool ended_ = false;
  bool returning_ = false;
  char last_ = ' ';  // the last character outside white space and comments
  std::string first_word_{};
  std::string previous_word_{};
  std::string verb_{};
};

}  // namespace

inlined_statement inline_arguments(std::string_view statement,
                                   std::vector<std::string> const& literals,
                                   inlining_options options) {
  return inliner{statement, literals, options}.run();
}

}  // namespace fenceguard::postgres
