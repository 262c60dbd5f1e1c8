#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "backend/membership/member_log.hpp"

/// The log of a group in a store; requests may take a minute.
class patient_log : public ferry::detail::member_log {
 public:
  patient_log(std::shared_ptr<ferry::store> where, observer observe)
      : member_log(std::make_shared<ferry::detail::bounded_store>(std::move(where)), std::move(observe)) {}

  void load() { member_log::load(limit()); }
  void catch_up() { member_log::catch_up(limit()); }
  ferry::detail::membership_change::kind append(const ferry::detail::member_entry& entry) {
    return member_log::append(entry, limit());
  }
  bool wait(ferry::deadline until = limit()) { return member_log::wait(until); }

 private:
  static ferry::deadline limit() { return ferry::deadline::after(std::chrono::minutes(1)); }
};
