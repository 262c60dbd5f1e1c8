#include "options.hpp"

#include <charconv>
#include <cmath>
#include <cstddef>

namespace ferry_top {
namespace {

// "5", "5s", "1.5 s" without the space, "200ms".
std::chrono::milliseconds duration(const std::string& name, const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string unit(rest, end);
  const double scale = unit == "ms" ? 1 : unit == "m" || unit == "min" ? 60'000 : 1000;
  constexpr double longest = 1e9;
  if (error != std::errc{} || !std::isfinite(value) || value < 0 || value * scale > longest ||
      !(unit.empty() || unit == "s" || unit == "ms" || unit == "m" || unit == "min")) {
    throw usage_error(name + " takes a time, for example 5s or 200ms, not '" + text + "'");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::llround(value * scale)));
}

}  // namespace

options parse(const std::vector<std::string>& arguments) {
  options result;
  bool has_group = false;
  bool has_action = false;
  for (std::size_t i = 0; i != arguments.size(); ++i) {
    std::string name = arguments[i];
    std::string value;
    bool has_value = false;
    if (name.starts_with("--")) {
      if (const std::size_t equals = name.find('='); equals != std::string::npos) {
        value = name.substr(equals + 1);
        name.resize(equals);
        has_value = true;
      }
    }
    const auto take_value = [&]() -> const std::string& {
      if (!has_value) {
        if (i + 1 == arguments.size()) throw usage_error(name + " needs a value");
        value = arguments[++i];
        has_value = true;
      }
      return value;
    };
    bool takes_value = true;
    if (name == "--interval" || name == "-i") {
      result.interval = duration(name, take_value());
      if (result.interval.count() < 50) throw usage_error(name + " must be at least 50ms");
    } else if (name == "--timeout") {
      result.limit = duration(name, take_value());
      if (result.limit.count() == 0) throw usage_error(name + " must not be 0");
    } else if (name == "--older-than") {
      result.older_than = duration(name, take_value());
    } else if (name == "--uncertainty") {
      result.uncertainty = duration(name, take_value());
    } else if (name == "--secret-file") {
      result.secret_file = take_value();
    } else if (name == "--output" || name == "-o") {
      result.output = take_value();
    } else {
      takes_value = false;
      if (name == "--once") {
        result.once = true;
      } else if (name == "--post-mortem") {
        result.what = options::action::post_mortem;
        has_action = true;
      } else if (name == "--json") {
        result.json = true;
      } else if (name == "--help" || name == "-h") {
        result.show_help = true;
      } else if (name == "--version") {
        result.show_version = true;
      } else if (name.starts_with("-")) {
        throw usage_error("there is no option " + name);
      } else if (name == "dump" && !has_action && !has_group) {
        result.what = options::action::dump;
        has_action = true;
      } else if (name == "record" && !has_action && !has_group) {
        result.what = options::action::record;
        has_action = true;
        if (i + 1 == arguments.size()) throw usage_error("record needs a time, for example 5s");
        result.length = duration("record", arguments[++i]);
        if (result.length.count() == 0) throw usage_error("record needs a time longer than 0");
      } else if (result.what == options::action::post_mortem) {
        result.files.push_back(name);
      } else if (!has_group) {
        if (name.find("://") == std::string::npos) {
          throw usage_error("'" + name +
                            "' is neither a command nor where a group meets: that is tcp://HOST:PORT, "
                            "file:///PATH or env://");
        }
        result.group = name;
        has_group = true;
      } else {
        throw usage_error("one group at a time: '" + name + "' is too much");
      }
    }
    if (has_value && !takes_value) throw usage_error(name + " takes no value");
  }
  if (result.what == options::action::watch && !result.output.empty())
    throw usage_error("--output is for 'ferry-top dump', 'record' and --post-mortem");
  if (result.what == options::action::watch && result.json && !result.once) throw usage_error("--json needs --once");
  if ((result.what == options::action::record || result.what == options::action::dump) && (result.json || result.once))
    throw usage_error("--once and --json are for the table");
  if (result.what == options::action::post_mortem && (has_group || result.once))
    throw usage_error("--post-mortem reads files: it takes no group, and no --once");
  if (result.what == options::action::post_mortem && result.files.empty() && !result.show_help)
    throw usage_error("--post-mortem needs a file, or a directory of them");
  return result;
}

const char* const usage_text = R"(usage: ferry-top [dump | record TIME] [OPTIONS] [GROUP]
       ferry-top --post-mortem [OPTIONS] FILE...

Watches the workers of a running group, from outside: it is no member, and changes nothing.
GROUP is where the workers meet, as their init_method: tcp://HOST:PORT, file:///PATH, or env:// (MASTER_ADDR and
MASTER_PORT, the default).

  ferry-top GROUP         a table of the workers: calls, bytes and errors a second, what waits and for how long;
                          refreshed until it is ended
  ferry-top dump GROUP    what every worker does now and did last (its flight record), in one JSON file whose times
                          are aligned, with the findings: the call that waits longest and where it ends, workers
                          that wait for each other, slow and lost ones

  ferry-top record 5s GROUP
                          switches recording on in all processes for that long: what they computed, called and waited
                          for, as a table; with --output FILE.html as a page, else as a trace for ui.perfetto.dev
  ferry-top --post-mortem FILE...
                          what workers did last that were killed: the flight files that they have left (see
                          ferry-run --flight-records), or all that are in a directory

  --once                  one table, after two looks an interval apart
  --json                  with --once, --post-mortem: JSON
  -i, --interval TIME     between two looks; default 1s
  --older-than TIME       calls that wait for less are not looked at; default 1s
  --timeout TIME          for the store, and for the answer of each worker; default 5s
  -o, --output FILE       where JSON goes; default: standard output. The findings go to standard error.
                          Of record: a page (FILE.html) or a trace
  --uncertainty TIME      of record: pages and traces are refused if the clock of a worker is known less well, since effects
                          would come before causes; default 100ms
  --secret-file FILE      the secret of the group; default: FERRY_SECRET, else the file FERRY_SECRET_FILE
  --help, --version

Workers that cannot be asked are named with the reason. Exit status: 0; 1 if the group or the file cannot be reached;
2 for a wrong command line.
)";

}  // namespace ferry_top
