#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

// libpqxx 6.4.5 leaks libpq's result where it finds a connection lost (connection_base::make_result
// asks for the encoding, and throws, before it owns the result).
extern "C" char const* __lsan_default_suppressions();
extern "C" char const* __lsan_default_suppressions() { return "leak:libpq.so.5\n"; }
