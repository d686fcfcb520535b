// No number turns into a token on its own, and no token into a number.
// expect: conversion from .int. to non-scalar type|no viable conversion|cannot convert
#include <fenceguard/core/fencing_token.hpp>
#include <type_traits>

static_assert(!std::is_convertible_v<fenceguard::fencing_token, long long>);

#ifdef VIOLATION
fenceguard::fencing_token const token = 42;
#else
fenceguard::fencing_token const token{42};
#endif
