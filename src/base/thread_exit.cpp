#include "thread_exit.hpp"

#include <cstddef>
#include <exception>
#include <typeinfo>

#include <cxxabi.h>
#include <pthread.h>
#include <unwind.h>

namespace ferry::inline v0::detail {
namespace {

thread_local constinit bool exit_was_held = false;

#if defined(__GLIBCXX__) && !defined(__ARM_EABI_UNWINDER__)
// The exception that is being handled. libstdc++ shows it of its own exceptions only; this is the part of its data whose
// layout the C++ ABI (Itanium) fixes.
struct handled_exception {
  std::type_info* type;
  void (*destructor)(void*);
  void* unexpected_handler;
  std::terminate_handler terminate_handler;
  handled_exception* next;
  int handler_count;
  int handler_switch_value;
  const unsigned char* action_record;
  const unsigned char* language_specific_data;
  _Unwind_Ptr catch_temporary;
  void* adjusted;
  _Unwind_Exception unwinding;  // of an exception of another language: only this
};
struct thread_exceptions {
  handled_exception* handled;
  unsigned int uncaught;
};

_Unwind_Exception* handled_without_type() noexcept {
  auto* handled = reinterpret_cast<thread_exceptions*>(abi::__cxa_get_globals())->handled;
  return handled && !std::current_exception() ? &handled->unwinding : nullptr;
}
#else
_Unwind_Exception* handled_without_type() noexcept { return nullptr; }
#endif

}  // namespace

bool hold_thread_exit() noexcept {
  _Unwind_Exception* thrown = handled_without_type();
  // A forced unwinding has its stop function here, a thrown exception 0.
  if (!thrown || thrown->private_1 == 0) return false;
  thrown->exception_cleanup = nullptr;  // called at the end of the catch block; that of the C library ends the process
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  exit_was_held = true;
  return true;
}

bool thread_exit_was_held() noexcept { return exit_was_held; }

}  // namespace ferry::inline v0::detail
