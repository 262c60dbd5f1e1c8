#pragma once

// The command line of ferry-top.

#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

namespace ferry_top {

struct options {
  enum class action { watch, dump, record, post_mortem } what = action::watch;
  std::string group = "env://";         ///< the init method of the group
  std::chrono::milliseconds length{0};  ///< of record
  std::chrono::milliseconds uncertainty{100};
  std::vector<std::string> files;  ///< of post_mortem; directories stand for the flight files in them
  std::string secret_file;
  std::chrono::milliseconds interval{1000};
  std::chrono::milliseconds limit{5000};       ///< for the store, and for each answer
  std::chrono::milliseconds older_than{1000};  ///< calls that wait for less are not looked at
  bool once = false;
  bool json = false;
  std::string output;  ///< of dump; empty: standard output
  bool show_help = false;
  bool show_version = false;
};

/// The command line is invalid; what() gives the reason.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws usage_error.
options parse(const std::vector<std::string>& arguments);

extern const char* const usage_text;

}  // namespace ferry_top
