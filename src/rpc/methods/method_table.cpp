#include "method_table.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <dlfcn.h>
#include <link.h>

#include <fmt/format.h>
#include <ferry/base/detail/futex.hpp>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/base/method_name.hpp>
#include <ferry/base/type_name.hpp>

#include "../worker/worker_core.hpp"

namespace ferry::inline v0::detail {

const char library_mark = 0;

namespace {

constexpr std::chrono::seconds complaint_pause{5};  // between two log messages of one wait
constexpr std::string_view name_prefix = "name:";

std::string_view flavour_prefix(method_flavour flavour) {
  switch (flavour) {
    case method_flavour::call: return "";
    case method_flavour::creation: return "new:";
    case method_flavour::object_call: return "on:";
    case method_flavour::object_creation: return "new-on:";
  }
  return "";
}

// One method id. Nodes and uses are never freed: lookups take no lock and may still read them.
struct method_node {
  std::uint64_t id = 0;
  method_node* next = nullptr;
  std::atomic<method_use*> current{nullptr};  // of the entry that serves
  // The first one serves. Several: the same function in several libraries, or a conflict.
  std::vector<const method_entry*> published;
  std::vector<method_use*> spare;
};

struct method_table {
  static constexpr std::size_t bucket_count = 1024;  // a power of two; ids are hashes

  std::mutex mutex;  // for everything but lookups
  std::array<std::atomic<method_node*>, bucket_count> buckets{};
  std::vector<const method_entry*> entries;  // all, withdrawn ones too
  bool checked = false;                      // a worker has started: conflicts are checked at registration from now on
  std::optional<std::vector<std::uint64_t>> served;
  std::vector<std::uint64_t> library;  // served by every worker

  [[nodiscard]] method_node* find(std::uint64_t id) const noexcept {
    method_node* node = buckets[id % bucket_count].load(std::memory_order_acquire);
    while (node && node->id != id) node = node->next;
    return node;
  }
  method_node& find_or_add(std::uint64_t id) {
    if (method_node* node = find(id)) return *node;
    auto& bucket = buckets[id % bucket_count];
    auto* fresh = new method_node;
    fresh->id = id;
    fresh->next = bucket.load(std::memory_order_relaxed);
    bucket.store(fresh, std::memory_order_release);
    return *fresh;
  }
};
method_table& table() {
  static auto* instance = new method_table;  // entries unregister during static destruction
  return *instance;
}

std::atomic<bool> process_exits{false};
std::atomic<void (*)(std::uint64_t id, const std::string& name)> registration_listener{nullptr};

// Whether a mangled function has internal linkage: two of one name are then two functions.
bool is_internal(std::string_view mangled) {
  if (mangled.find("_GLOBAL__N_") != std::string_view::npos) return true;
  if (mangled.substr(0, 2) != "_Z") return false;
  mangled.remove_prefix(2);
  if (mangled.substr(0, 1) == "N") {
    mangled.remove_prefix(1);
    while (!mangled.empty() && std::string_view("rVKRO").find(mangled.front()) != std::string_view::npos) {
      mangled.remove_prefix(1);
    }
  }
  const auto digit = [&](std::size_t i) { return i < mangled.size() && mangled[i] >= '0' && mangled[i] <= '9'; };
  while (!mangled.empty()) {
    if (mangled.front() == 'L') return digit(1);
    std::size_t length = 0;
    std::size_t digits = 0;
    for (; digit(digits); ++digits) length = length * 10 + static_cast<std::size_t>(mangled[digits] - '0');
    if (digits == 0 || digits + length > mangled.size()) return false;
    mangled.remove_prefix(digits + length);
  }
  return false;
}

std::string describe(const method_entry& entry) {
  std::string text = fmt::format("'{}' {}", entry.name, entry.signature_text);
  if (entry.name != entry.function_name) text += fmt::format(" (the function {})", entry.function_name);
  return text;
}

// Why two entries under one id are not the same method; empty if they are.
std::string conflict(const method_entry& a, const method_entry& b) {
  if (a.key == b.key && a.function == b.function && a.signature == b.signature && !is_internal(a.function)) return {};
  return fmt::format("two functions of this program have one method id: {} and {}. {}", describe(a), describe(b),
                     a.key.find(name_prefix) != std::string::npos && a.key == b.key
                         ? "Give each a public name of its own"
                         : "Functions that are static or in an unnamed namespace need different names to be called "
                           "remotely");
}

// With the mutex held. The first conflict with what is published.
std::string publish_locked(const method_entry& entry) {
  method_node& node = table().find_or_add(entry.id);
  std::string problem;
  for (const method_entry* other : node.published) {
    if (problem.empty()) problem = conflict(*other, entry);
  }
  node.published.push_back(&entry);
  entry.use->entry.store(&entry);
  if (node.published.size() == 1) node.current.store(entry.use);
  return problem;
}

// With the mutex held. Throws errc::duplicate_method.
void check_locked(const std::vector<const method_entry*>& entries) {
  for (const method_entry* entry : entries) {
    if (!entry->serve) continue;
    for (const method_entry* other : table().find(entry->id)->published) {
      if (other == entry) continue;
      if (const std::string problem = conflict(*other, *entry); !problem.empty()) {
        throw_error(errc::duplicate_method, problem);
      }
    }
  }
}

// With the mutex held.
void withdraw_locked(const method_entry& entry) noexcept {
  method_node* node = table().find(entry.id);
  if (!node || std::erase(node->published, &entry) == 0) return;
  // In this order: a lookup that finds no entry retries and finds the next one.
  node->current.store(node->published.empty() ? nullptr : node->published.front()->use);
  entry.use->entry.store(nullptr);
}

}  // namespace

void method_use::release() noexcept {
  // The use may serve the next entry at once; then the wake-up is spurious.
  if (running.fetch_sub(1) == 1 && entry.load() == nullptr) futex_wake_all(running);
}

method_entry::method_entry(const method_source& source)
    : signature_text(source.signature()),
      serve(source.serve),
      inline_handler(source.inline_handler && source.flavour == method_flavour::call),
      protocol(source.protocol),
      flavour(source.flavour) {
  signature = fingerprint(signature_text);
  if (source.tag) {
    function = mangled_method(*source.tag);
    function_name = readable_method(*source.tag, *source.type);
  }
  key = flavour_prefix(flavour);
  key += source.public_name.empty() ? function : std::string(name_prefix) + std::string(source.public_name);
  name = source.public_name.empty() ? function_name : std::string(source.public_name);
  // Functions of one name and other types have the same upper half, so that a callee can say which ones it has.
  id = fingerprint(key);
  if (source.public_name.empty()) {
    const std::uint64_t lower = (std::uint64_t{1} << 32U) - 1;
    id = (fingerprint(std::string(flavour_prefix(flavour)) + std::string(name_without_types(function))) & ~lower) |
         (id & lower);
  }

  std::string problem;
  {
    std::lock_guard lock(table().mutex);
    method_node& node = table().find_or_add(id);
    if (node.spare.empty()) {
      use = new method_use;
    } else {
      use = node.spare.back();
      node.spare.pop_back();
    }
    table().entries.push_back(this);
    if (serve) problem = publish_locked(*this);
    if (!table().checked) problem.clear();
  }
  if (!problem.empty()) log(log_level::error, problem + ". The first one stays");
  if (const auto listener = registration_listener.load()) listener(id, name);
}

method_entry::~method_entry() {
  const bool exiting = process_exits.load();
  // Withdraw all methods of a library before waiting for the first one.
  if (!exiting && use->entry.load() == this) withdraw(entries_in(library_of(this)));
  {
    std::lock_guard lock(table().mutex);
    std::erase(table().entries, this);
    withdraw_locked(*this);
    use->entry.store(nullptr);
  }
  if (exiting) return;  // running calls end with the process, and so does `use`
  if (running_method() == this) {
    log(log_level::error,
        fmt::format("a handler of {} unloads the library that holds its own code, and would return into nothing: the "
                    "program is stopped. Unload it on another thread; ferry::plugin::unload() throws in such a case",
                    describe(*this)));
    std::abort();
  }
  wait_unused(*this, deadline());
  std::lock_guard lock(table().mutex);
  table().find_or_add(id).spare.push_back(use);
}

bool stays_at_exit(const method_entry& entry) noexcept {
  return process_exits.load() && library_of(&entry) != nullptr && is_of_program(&entry);
}

bool is_of_program(const void* address) noexcept {
  const auto* const map = static_cast<const link_map*>(library_of(address));
  return !map || !map->l_prev;  // the first one is the program
}

method_hold method_hold::find(std::uint64_t id) noexcept {
  method_node* node = table().find(id);
  while (node) {
    method_use* use = node->current.load();
    if (!use) break;
    // Increment the count, then read the entry; a withdrawal clears the entry, then reads the count. So at least one of
    // the two sees the other.
    use->running.fetch_add(1);
    if (const method_entry* entry = use->entry.load()) return {entry, adopt{}};
    use->release();
  }
  return {};
}

void check_methods() {
  std::lock_guard lock(table().mutex);
  check_locked(table().entries);
  table().checked = true;
}

void check_entries(const std::vector<const method_entry*>& entries) {
  std::lock_guard lock(table().mutex);
  check_locked(entries);
}

void note_process_exit() {
  // Exit functions run in reverse order: this one runs before the destructor of any entry made so far. (A library that
  // is loaded repeatedly leaves one exit function, a few bytes, each time.)
  if (std::atexit([] { process_exits.store(true); }) != 0) {
    log(log_level::warning, "atexit failed: the end of this process may wait for handlers that still run");
  }
}

void add_served_methods(const std::vector<std::uint64_t>& ids) {
  std::lock_guard lock(table().mutex);
  if (!table().served) table().served.emplace();
  table().served->insert(table().served->end(), ids.begin(), ids.end());
}

void add_library_methods(const std::vector<std::uint64_t>& ids) {
  std::lock_guard lock(table().mutex);
  table().library.insert(table().library.end(), ids.begin(), ids.end());
}

std::vector<std::uint64_t> library_methods() {
  std::lock_guard lock(table().mutex);
  return table().library;
}

served_methods served_by_default() {
  std::lock_guard lock(table().mutex);
  return table().served ? served_methods(*table().served) : served_methods();
}

const void* library_of(const void* address) noexcept {
  Dl_info info{};
  void* map = nullptr;
  return ::dladdr1(address, &info, &map, RTLD_DL_LINKMAP) == 0 ? nullptr : map;
}

std::vector<const method_entry*> entries_in(const void* library) {
  std::vector<const method_entry*> found;
  std::lock_guard lock(table().mutex);
  for (const method_entry* entry : table().entries) {
    if (library_of(entry) == library) found.push_back(entry);
  }
  return found;
}

std::string known_method_name(std::uint64_t id) {
  std::lock_guard lock(table().mutex);
  for (const method_entry* each : table().entries) {
    if (each->id == id) return each->name;
  }
  return {};
}

std::vector<std::pair<std::uint64_t, std::string>> namesakes(std::uint64_t id) {
  std::vector<std::pair<std::uint64_t, std::string>> found;
  const std::lock_guard lock(table().mutex);
  for (const method_entry* each : table().entries) {
    // The two halves of an id are of one text where there is a public name.
    const bool is_function = each->serve && each->key.find(name_prefix) == std::string::npos;
    if (is_function && each->id >> 32U == id >> 32U && each->id != id)
      found.emplace_back(each->id, each->signature_text);
  }
  return found;
}

std::string readable_name(std::uint64_t id) {
  std::string name = known_method_name(id);
  return name.empty() ? fmt::format("method {:016x}", id) : name;
}

std::vector<std::pair<std::uint64_t, std::string>> method_names() {
  std::vector<std::pair<std::uint64_t, std::string>> names;
  std::lock_guard lock(table().mutex);
  names.reserve(table().entries.size());
  for (const method_entry* each : table().entries) names.emplace_back(each->id, each->name);
  return names;
}

void note_registered_methods(void (*listener)(std::uint64_t id, const std::string& name)) noexcept {
  registration_listener.store(listener);
}

void withdraw(const std::vector<const method_entry*>& entries) {
  std::lock_guard lock(table().mutex);
  for (const method_entry* entry : entries) {
    withdraw_locked(*entry);
    entry->use->entry.store(nullptr);  // also of a stub: wakes the threads that wait for its calls
  }
}

void publish(const std::vector<const method_entry*>& entries) {
  std::lock_guard lock(table().mutex);
  for (const method_entry* entry : entries) {
    if (!entry->serve) continue;
    const auto& published = table().find_or_add(entry->id).published;
    if (std::find(published.begin(), published.end(), entry) == published.end()) publish_locked(*entry);
  }
}

bool wait_unused(const method_entry& entry, deadline until) {
  const method_use& use = *entry.use;
  clock::time_point complaint = clock::now() + complaint_pause;
  for (;;) {
    const std::uint32_t users = use.running.load();
    if (users == 0 || use.entry.load() != nullptr) return true;  // unused, or published again in between
    if (until.expired()) return false;
    const deadline pause(complaint);
    if (futex_wait(use.running, users, pause < until ? pause : until)) continue;
    if (clock::now() < complaint) continue;
    complaint = clock::now() + complaint_pause;
    log(log_level::warning, fmt::format("unloading a library waits for {} calls of {} that still run, or that it has "
                                        "under way itself",
                                        users, describe(entry)));
  }
}

}  // namespace ferry::inline v0::detail
