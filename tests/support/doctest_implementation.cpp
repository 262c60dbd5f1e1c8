// What programs with doctest's header link; main.cpp runs tests.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
