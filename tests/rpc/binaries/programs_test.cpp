// Servers and clients in programs of their own.

#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "processes.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace programs_test {

using ferry_test::child_process;

namespace {

std::string program(const char* name) { return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name; }

}  // namespace

TEST_CASE("a client without the server's code calls the methods that the server lists, and no others") {
  ferry_test::watchdog watchdog("a server and a client");
  ferry_test::temporary_directory directory;
  const std::string meeting = "file://" + directory.file("store");
  child_process server({.arguments = {meeting}, .program = program("test_server")});
  child_process client({.arguments = {meeting}, .program = program("test_client")});
  CHECK(client.wait() == 0);
  CHECK(server.wait() == 0);
}

TEST_CASE("a program with two functions under one name does not start, and says which") {
  child_process child({.program = program("test_twins")});
  const std::string said = child.read_line();
  INFO(said);
  CHECK(said.starts_with("duplicate_method: "));
  CHECK(said.find("'twin' i32(i32) (the function twins::first)") != std::string::npos);
  CHECK(said.find("'twin' i32(i32) (the function twins::second)") != std::string::npos);
  CHECK(child.wait() == 0);
}

TEST_CASE("a program with two static functions of one name does not start, and says which") {
  child_process child({.program = program("test_static_twins")});
  const std::string said = child.read_line();
  INFO(said);
  CHECK(said.starts_with("duplicate_method: "));
  CHECK(said.find("'twins::hidden' i32(i32)") != std::string::npos);
  CHECK(said.find("static") != std::string::npos);
  CHECK(child.wait() == 0);
}

}  // namespace programs_test
