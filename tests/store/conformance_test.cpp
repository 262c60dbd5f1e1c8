#include <ferry/test_kit/store_conformance.hpp>

#include "store_fixtures.hpp"

TYPE_TO_STRING(store_test::hash_fixture);
TYPE_TO_STRING(store_test::file_fixture);
TYPE_TO_STRING(store_test::tcp_fixture);
TYPE_TO_STRING(store_test::prefix_fixture<store_test::hash_fixture>);
TYPE_TO_STRING(store_test::prefix_fixture<store_test::file_fixture>);
TYPE_TO_STRING(store_test::prefix_fixture<store_test::tcp_fixture>);

namespace conformance_test {

using namespace store_test;

TEST_CASE_TEMPLATE("store conformance", Fixture, hash_fixture, file_fixture, tcp_fixture, prefix_fixture<hash_fixture>,
                   prefix_fixture<file_fixture>, prefix_fixture<tcp_fixture>) {
  ferry::test_kit::store_conformance<Fixture>();
}
TEST_CASE_TEMPLATE("store conformance over processes", Fixture, file_fixture, tcp_fixture, prefix_fixture<file_fixture>,
                   prefix_fixture<tcp_fixture>) {
  ferry::test_kit::store_conformance_over_processes<Fixture>();
}

}  // namespace conformance_test
