#include <ferry/test_kit/store_conformance.hpp>

#include "store_fixtures.hpp"

using namespace store_test;

TYPE_TO_STRING(hash_fixture);
TYPE_TO_STRING(file_fixture);
TYPE_TO_STRING(tcp_fixture);
TYPE_TO_STRING(prefix_fixture<hash_fixture>);
TYPE_TO_STRING(prefix_fixture<file_fixture>);
TYPE_TO_STRING(prefix_fixture<tcp_fixture>);

TEST_CASE_TEMPLATE("store conformance", Fixture, hash_fixture, file_fixture, tcp_fixture, prefix_fixture<hash_fixture>,
                   prefix_fixture<file_fixture>, prefix_fixture<tcp_fixture>) {
  ferry::test_kit::store_conformance<Fixture>();
}
TEST_CASE_TEMPLATE("store conformance over processes", Fixture, file_fixture, tcp_fixture, prefix_fixture<file_fixture>,
                   prefix_fixture<tcp_fixture>) {
  ferry::test_kit::store_conformance_over_processes<Fixture>();
}
