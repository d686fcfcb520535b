#include "servers/certificates.hpp"

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "servers/child_process.hpp"
#include "servers/wait.hpp"

namespace fenceguard::test_servers {
namespace {

constexpr char const* new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

}  // namespace

certificates::certificates() {
  openssl(std::string{"req -x509 "} + new_key +
          " -days 2 -subj /CN=authority -keyout ca.key -out ca.crt");
}

auto certificates::issue(std::string const& names, int days) -> pair {
  auto const name = "issued" + std::to_string(++issued_);
  std::ofstream{directory_.path() / (name + ".ext")} << "subjectAltName=" << names << '\n';
  openssl(std::string{"req "} + new_key + " -subj /CN=issued -keyout " + name + ".key -out " +
          name + ".csr");
  openssl("x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days " + std::to_string(days) +
          " -in " + name + ".csr -extfile " + name + ".ext -out " + name + ".crt");
  return {directory_.path() / (name + ".crt"), directory_.path() / (name + ".key")};
}

void certificates::openssl(std::string const& arguments) const {
  std::vector<std::string> command{"openssl"};
  std::istringstream words{arguments};
  for (std::string word; words >> word;) command.push_back(word);
  auto const log = directory_.path() / "openssl.log";
  child_process running{{.command = command, .log = log, .directory = directory_.path()}};
  if (running.wait(patience) != 0) {
    throw std::runtime_error("openssl " + command.at(1) + ": " + tail(log));
  }
}

}  // namespace fenceguard::test_servers
