#pragma once

// The part of the method table that loads and unloads plug-ins. All functions are thread-safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/rpc/detail/method_entry.hpp>

namespace ferry::inline v0::detail {

/// What a callee answers with errc::unknown_method; empty in older versions. The caller has the names to say more.
inline constexpr std::string_view no_such_method = "this program has no such method";

/// Every copy of libferry in a process has one of its own, which the loader finds by its name.
extern const char library_mark;

/// The shared object (its link_map) that an entry lies in; null if unknown.
const void* library_of(const void* address) noexcept;

/// Whether code or data is that of the program itself, or unknown: it stays until the end of the process.
bool is_of_program(const void* address) noexcept;

/// The entries in that shared object.
std::vector<const method_entry*> entries_in(const void* library);

/// Throws errc::duplicate_method if one of them has the id of another function.
void check_entries(const std::vector<const method_entry*>& entries);

/// Removes them from lookup; if another shared object has the same method, that one serves it from now on.
void withdraw(const std::vector<const method_entry*>& entries);
/// Undoes withdraw().
void publish(const std::vector<const method_entry*>& entries);
/// The readable name of the method with that id, or of its stub; "method 0123456789abcdef" if the program has neither.
std::string readable_name(std::uint64_t id);
/// The ids and signatures of the functions of this program that have the name of that method, which it does not have.
std::vector<std::pair<std::uint64_t, std::string>> namesakes(std::uint64_t id);
/// The ids and readable names of all methods and stubs of this program.
std::vector<std::pair<std::uint64_t, std::string>> method_names();
/// Has `listener` called for each method and stub that is registered from then on, as when a library is loaded. There is one
/// listener: the last one.
void note_registered_methods(void (*listener)(std::uint64_t id, const std::string& name)) noexcept;

/// Waits until a withdrawn entry has no user; false if the deadline passed. Logs at intervals what it waits for.
bool wait_unused(const method_entry& entry, deadline until);

}  // namespace ferry::inline v0::detail
