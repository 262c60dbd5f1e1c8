#include "flight_storage.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>
#include <ferry/base/log.hpp>

#include "../../base/parse_number.hpp"
#include "../../base/unique_fd.hpp"
#include "../methods/method_table.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t room_for_names = std::size_t{128} << 10U;  // beside those known at the start
constexpr int most_files_of_a_process = 100;
constexpr std::chrono::milliseconds calibration_pause{100};

// The files of a process: they learn the names of methods that are registered later.
struct open_flight_files {
  const pid_t process = ::getpid();
  std::mutex mutex;
  std::vector<flight_storage*> all;
};
// Never freed: methods register during static initialisation and destruction.
std::atomic<open_flight_files*> newest_flight_files{nullptr};

// Null: this process has had none. A child process has copies of its parent's, whose mutex may be locked for ever.
open_flight_files* known_flight_files() noexcept {
  open_flight_files* const newest = newest_flight_files.load();
  return newest && newest->process == ::getpid() ? newest : nullptr;
}
open_flight_files& flight_files() {
  open_flight_files* before = newest_flight_files.load();
  if (before && before->process == ::getpid()) return *before;
  auto fresh = std::make_unique<open_flight_files>();
  return newest_flight_files.compare_exchange_strong(before, fresh.get()) ? *fresh.release() : *before;
}

void note_method(std::uint64_t id, const std::string& name) {
  open_flight_files* const files = known_flight_files();
  if (!files) return;
  std::lock_guard lock(files->mutex);
  for (flight_storage* each : files->all) each->add_name(flight_name::method, id, name);
}

// Field 22 of /proc/self/stat. The second one, the program's name, may contain anything.
std::uint64_t start_of_process() {
  std::ifstream file("/proc/self/stat");
  const std::string all(std::istreambuf_iterator<char>(file), {});
  std::size_t at = all.rfind(')');
  for (int field = 2; field != 22 && at != std::string::npos; ++field) at = all.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  const std::size_t end = all.find(' ', at + 1);
  if (end == std::string::npos) return 0;
  return parse_number<std::uint64_t>(all.substr(at + 1, end - at - 1)).value_or(0);
}

std::size_t size_of_names() {
  std::size_t bytes = room_for_names;
  for (const auto& [id, name] : method_names()) bytes += flight_name_bytes(std::min(name.size(), longest_flight_name));
  return flight_pages(bytes);
}

template <std::size_t Count>
void fill_field(std::array<char, Count>& field, std::string_view text) noexcept {
  std::copy_n(text.data(), std::min(text.size(), Count - 1), field.data());
}

// A process that is killed has made its writes in their order; the compiler must not change that.
void store_word(std::byte* at, std::uint64_t value) noexcept {
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(at)).store(value, std::memory_order_release);
}

std::byte* map_memory(std::size_t bytes, int kind, int file) noexcept {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind, file, 0);
  if (memory == MAP_FAILED) return nullptr;  // NOLINT(cppcoreguidelines-pro-type-cstyle-cast): the system's macro
  return static_cast<std::byte*>(memory);
}

// Throws std::system_error unless all of the file has its place on the disk: a write to memory cannot fail.
void reserve_file(int file, std::size_t bytes) {
  rlimit most{};
  // Beyond it the process would get a signal.
  int failure = ::getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < bytes ? EFBIG : 0;
  if (failure == 0) {
    do {
      failure = ::posix_fallocate(file, 0, static_cast<off_t>(bytes));
    } while (failure == EINTR);
  }
  if (failure != 0) throw std::system_error(failure, std::generic_category());
}

}  // namespace

std::string flight_boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

flight_storage::flight_storage(std::size_t events, const flight_owner& owner) {
  if (!owner.directory.empty()) {
    try {
      open_file(events, owner);
      return;
    } catch (const std::system_error& e) {
      log(log_level::warning,
          fmt::format("worker {}: no flight file in {}: {}; its last events are in its memory only and end with it",
                      owner.worker, owner.directory, e.code().message()));
    } catch (const std::exception& e) {
      log(log_level::warning,
          fmt::format("worker {}: no flight file in {}: {}", owner.worker, owner.directory, e.what()));
    }
  }
  ring_at_ = 0;
  texts_at_ = events * flight_event_bytes;
  bytes_ = texts_at_ + kept_texts * sizeof(flight_text);
  // Untouched pages, so that an idle worker does not use memory for them.
  memory_ = map_memory(bytes_, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (!memory_) log(log_level::warning, "no memory for the flight recorder: it is off");
}

flight_storage::~flight_storage() {
  if (open_flight_files* const files = known_flight_files()) {
    std::lock_guard lock(files->mutex);
    std::erase(files->all, this);
  }
  remove_file();
  if (memory_) ::munmap(memory_, bytes_);
}

void flight_storage::open_file(std::size_t events, const flight_owner& owner) {
  ring_at_ = flight_page;
  texts_at_ = ring_at_ + flight_pages(events * flight_event_bytes);
  names_at_ = texts_at_ + flight_pages(kept_texts * sizeof(flight_text));
  next_name_ = names_at_;
  bytes_ = names_at_ + size_of_names();
  const std::filesystem::path directory = std::filesystem::absolute(owner.directory);
  // A file of that name is of a process that was killed: what it says is kept.
  unique_fd file;
  std::string path;
  for (int count = 1; !file; ++count) {
    // There is no dot in the name of a worker.
    path = directory / (count == 1 ? fmt::format("ferry-{}-{}.flight", owner.worker, ::getpid())
                                   : fmt::format("ferry-{}-{}.{}.flight", owner.worker, ::getpid(), count));
    file.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file && (errno != EEXIST || count == most_files_of_a_process))
      throw std::system_error(errno, std::generic_category());
  }
  path_ = std::move(path);
  try {
    reserve_file(file.get(), bytes_);
    memory_ = map_memory(bytes_, MAP_SHARED, file.get());
    if (!memory_) throw std::system_error(errno, std::generic_category());
    process_ = ::getpid();
    in_file_ = true;
    write_header(events, owner);
    note_registered_methods(&note_method);
    open_flight_files& files = flight_files();
    std::lock_guard lock(files.mutex);
    files.all.push_back(this);
  } catch (...) {
    ::unlink(path_.c_str());
    path_.clear();
    if (memory_) ::munmap(memory_, bytes_);
    memory_ = nullptr;
    in_file_ = false;
    throw;
  }
  try {
    for (const auto& [id, name] : method_names()) add_name(flight_name::method, id, name);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the methods have numbers then
  }
}

void flight_storage::write_header(std::size_t events, const flight_owner& owner) noexcept {
  flight_header header;
  header.file_bytes = bytes_;
  header.ring_at = ring_at_;
  header.events = events;
  header.texts_at = texts_at_;
  header.names_at = names_at_;
  header.names_bytes = bytes_ - names_at_;
  header.process = ::getpid();
  header.places = owner.places;
  fill_field(header.worker, owner.worker);
  try {
    fill_field(header.boot, flight_boot_id());
    header.process_start = start_of_process();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): they stay unknown
  }
  std::copy_n(flight_magic.data(), header.magic.size(), header.magic.data());
  header.check = fingerprint({reinterpret_cast<const char*>(&header), offsetof(flight_header, check)});
  set_identity(owner.id, owner.incarnation);
  const flight_reading now = read_flight_clocks();
  calibrated_ns_ = now.steady_ns;
  write_calibration(0, ++calibrations_, now);
  std::uint64_t magic = 0;
  std::memcpy(&magic, header.magic.data(), sizeof magic);
  std::memcpy(memory_ + sizeof magic, reinterpret_cast<const std::byte*>(&header) + sizeof magic,
              sizeof header - sizeof magic);
  store_word(memory_, magic);
}

std::uint64_t* flight_storage::ring() const noexcept { return reinterpret_cast<std::uint64_t*>(memory_ + ring_at_); }

flight_text& flight_storage::text(std::uint64_t number) const noexcept {
  return reinterpret_cast<flight_text*>(memory_ + texts_at_)[number % kept_texts];
}

bool flight_storage::is_in_its_process() const noexcept {
  return process_.load(std::memory_order_relaxed) == ::getpid();
}

std::string flight_storage::file() const {
  if (!is_in_its_process()) return {};
  std::lock_guard lock(mutex_);
  return path_;
}

void flight_storage::set_identity(worker_id id, incarnation_id incarnation) noexcept {
  if (!in_file_ || !is_in_its_process()) return;
  store_word(memory_ + flight_identity_at + offsetof(flight_identity, incarnation), incarnation.value);
  store_word(memory_ + flight_identity_at + offsetof(flight_identity, id),
             static_cast<std::uint64_t>(std::int64_t{id.value}));
}

void flight_storage::calibrate(const flight_reading& now) noexcept {
  if (!in_file_ || !is_in_its_process()) return;
  std::lock_guard lock(mutex_);
  if (std::chrono::nanoseconds(now.steady_ns - calibrated_ns_) < calibration_pause) return;
  calibrated_ns_ = now.steady_ns;
  const std::uint64_t number = ++calibrations_;
  write_calibration(1 + number % (flight_calibration_count - 1), number, now);
}

void flight_storage::write_calibration(std::size_t place, std::uint64_t number, const flight_reading& now) noexcept {
  const auto wall =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch());
  const flight_calibration words{number, static_cast<std::uint64_t>(now.steady_ns), now.ticks,
                                 static_cast<std::uint64_t>(wall.count())};
  std::byte* at = memory_ + flight_calibrations_at + place * flight_calibration_stride;
  for (const std::uint64_t each : words) {
    store_word(at, each);
    at += sizeof each;
  }
  store_word(at, flight_check(words));
}

void flight_storage::add_name(flight_name kind, std::uint64_t key, std::string_view name) noexcept {
  if (!in_file_ || name.empty() || !is_in_its_process()) return;
  name = name.substr(0, longest_flight_name);
  try {
    std::lock_guard lock(mutex_);
    // Behind the last one there is a head of zeroes.
    const bool fits = next_name_ + flight_name_bytes(name.size()) + sizeof(flight_name_head) <= bytes_;
    std::size_t former = 0;
    if (kind == flight_name::method) {
      if (!fits || !methods_.insert(key).second) return;
    } else {
      if (const auto known = peers_.find(key); known != peers_.end()) {
        if (known->second.name == name) return;
        former = known->second.at;
      }
      if (fits) {
        peers_.insert_or_assign(key, kept_name{std::string(name), next_name_});
      } else {
        peers_.erase(key);
      }
    }
    if (fits) {
      std::byte* const at = memory_ + next_name_;
      std::memcpy(at + sizeof(flight_name_head), name.data(), name.size());
      store_word(at + offsetof(flight_name_head, key), key);
      store_word(at, name.size() | static_cast<std::uint64_t>(kind) << 32U);
      next_name_ += flight_name_bytes(name.size());
    }
    if (former != 0) {
      auto& kind_of_former = *reinterpret_cast<std::uint32_t*>(memory_ + former + offsetof(flight_name_head, kind));
      std::atomic_ref(kind_of_former).store(static_cast<std::uint32_t>(flight_name::none), std::memory_order_release);
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it is not kept
  }
}

void flight_storage::remove_file() noexcept {
  if (!is_in_its_process()) return;  // the file does not belong to a child process
  std::lock_guard lock(mutex_);
  if (!path_.empty()) ::unlink(path_.c_str());
  path_.clear();
}

void flight_storage::keep_file() noexcept {
  if (!is_in_its_process()) return;
  std::lock_guard lock(mutex_);
  path_.clear();
}

}  // namespace ferry::inline v0::detail
