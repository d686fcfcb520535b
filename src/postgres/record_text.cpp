#include "postgres/record_text.hpp"

#include <stdexcept>

namespace fenceguard::postgres {
namespace {

class reader {
 public:
  explicit reader(std::string_view text) : rest_{text} {}

  std::vector<std::optional<std::string>> fields() {
    std::vector<std::optional<std::string>> all;
    expect('(');
    for (;;) {
      all.push_back(field());
      if (next() == ')') break;
      expect(',');
    }
    expect(')');
    if (!rest_.empty()) fail();
    return all;
  }

 private:
  [[noreturn]] static void fail() {
    throw std::invalid_argument{"not the text of a composite value"};
  }
  char next() const {
    if (rest_.empty()) fail();
    return rest_.front();
  }
  char take() {
    char const one = next();
    rest_.remove_prefix(1);
    return one;
  }
  void expect(char wanted) {
    if (take() != wanted) fail();
  }

  std::optional<std::string> field() {
    if (next() == ',' || next() == ')') return std::nullopt;
    std::string value;
    bool quoted = false;
    while (quoted || (next() != ',' && next() != ')')) {
      char const one = take();
      if (one == '\\') {
        value += take();
      } else if (one != '"') {
        value += one;
      } else if (quoted && next() == '"') {
        value += take();
      } else {
        quoted = !quoted;
      }
    }
    return value;
  }

  std::string_view rest_;
};

}  // namespace

std::vector<std::optional<std::string>> read_record(std::string_view text) {
  return reader{text}.fields();
}

}  // namespace fenceguard::postgres
