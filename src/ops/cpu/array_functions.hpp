// Functions of one number on whole arrays. instruction_set_kernels.cpp includes this text into a namespace of its instruction set,
// as small_gemm.hpp. All elements go through the same instructions, those at the end of an array in a padded vector: the result
// for a number does not depend on where it stands.

namespace packets = Eigen::internal;

template <class T, bool Vectors>
struct packet_or_number {
  typedef typename packets::packet_traits<T>::type type;
};
template <class T>
struct packet_or_number<T, false> {
  typedef T type;
};
template <class T>
using packet_of =
    typename packet_or_number<T, packets::packet_traits<T>::HasExp && packets::packet_traits<T>::HasLog>::type;

template <class T>
struct number_limits;
template <>
struct number_limits<float> {
  static constexpr float infinity = __builtin_inff();
  static constexpr float exp_highest = 88.72283F;  // the exponential of more is infinite
  static constexpr float exp_lowest = -87.33654F;  // of less, below the smallest normal number
};
template <>
struct number_limits<double> {
  static constexpr double infinity = __builtin_inf();
  static constexpr double exp_highest = 709.782712893384;
  static constexpr double exp_lowest = -708.3964185322641;
};

template <class P, class T>
[[gnu::always_inline]] inline P all(T value) {
  return packets::pset1<P>(value);
}

// Eigen's exponential, which is finite everywhere.
template <class P>
[[gnu::always_inline]] inline P finite_exp(const P& x) {
  return packets::pexp(x);
}
#if defined(__AVX512F__) && !EIGEN_VERSION_AT_LEAST(3, 4, 90)
// Eigen 3.4 has one of its own for these vectors, which ends at 88.37.
[[gnu::always_inline]] inline packets::Packet16f finite_exp(const packets::Packet16f& x) {
  return packets::pexp_float(x);
}
#endif

struct exp_of {
  template <class T, class P>
  [[gnu::always_inline]] static P apply(const P& x) {
    using limits = number_limits<T>;
    P y = finite_exp(x);
    y = packets::pselect(packets::pcmp_lt(all<P>(limits::exp_highest), x), all<P>(limits::infinity), y);
    y = packets::pselect(packets::pcmp_lt(x, all<P>(limits::exp_lowest)), all<P>(T{0}), y);
    return packets::pselect(packets::pcmp_eq(x, x), y, x);
  }
};

struct log_of {
  template <class T, class P>
  [[gnu::always_inline]] static P apply(const P& x) {
    return packets::plog(x);
  }
};

// The rational approximation of (tanh(x) - x) / x^3 for |x| < 0.625, by z = x^2. Its numbers, and those for double below, are from
// the Cephes library (S. L. Moshier), tanhf.c and tanh.c.
template <class P>
[[gnu::always_inline]] inline P tanh_part(const P& z, float) {
  P y = all<P>(-5.70498872745E-3F);
  y = packets::pmadd(y, z, all<P>(2.06390887954E-2F));
  y = packets::pmadd(y, z, all<P>(-5.37397155531E-2F));
  y = packets::pmadd(y, z, all<P>(1.33314422036E-1F));
  return packets::pmadd(y, z, all<P>(-3.33332819422E-1F));
}
template <class P>
[[gnu::always_inline]] inline P tanh_part(const P& z, double) {
  P above = all<P>(-9.64399179425052238628E-1);
  above = packets::pmadd(above, z, all<P>(-9.92877231001918586564E1));
  above = packets::pmadd(above, z, all<P>(-1.61468768441708447952E3));
  P below = packets::padd(z, all<P>(1.12811678491632931402E2));
  below = packets::pmadd(below, z, all<P>(2.23548839060100448583E3));
  below = packets::pmadd(below, z, all<P>(4.84406305325125486048E3));
  return packets::pdiv(above, below);
}

struct tanh_of {
  template <class T, class P>
  [[gnu::always_inline]] static P apply(const P& x) {
    const P size = packets::pabs(x);
    const P square = packets::pmul(x, x);
    const P near = packets::pmadd(packets::pmul(x, square), tanh_part(square, T{}), x);
    const P power = exp_of::apply<T>(packets::padd(size, size));
    const P far = packets::psub(all<P>(T{1}), packets::pdiv(all<P>(T{2}), packets::padd(power, all<P>(T{1}))));
    const P signed_far = packets::pselect(packets::pcmp_lt(x, all<P>(T{0})), packets::pnegate(far), far);
    const P y = packets::pselect(packets::pcmp_lt(size, all<P>(T(0.625))), near, signed_far);
    return packets::pselect(packets::pcmp_eq(x, all<P>(T{0})), x, y);  // -0 stays what it is
  }
};

struct sigmoid_of {
  template <class T, class P>
  [[gnu::always_inline]] static P apply(const P& x) {
    const P power = exp_of::apply<T>(packets::pnegate(x));
    return packets::pdiv(all<P>(T{1}), packets::padd(power, all<P>(T{1})));
  }
};

template <class Function, class T>
void each_element(const T* in, T* out, std::int64_t count) {
  using P = packet_of<T>;
  constexpr std::int64_t size = packets::unpacket_traits<P>::size;
  std::int64_t i = 0;
  for (; i + size <= count; i += size) {
    packets::pstoreu(out + i, Function::template apply<T>(packets::template ploadu<P>(in + i)));
  }
  if (i == count) return;
  const std::size_t rest = static_cast<std::size_t>(count - i) * sizeof(T);
  T part[size] = {};
  __builtin_memcpy(part, in + i, rest);
  packets::pstoreu(part, Function::template apply<T>(packets::template ploadu<P>(part)));
  __builtin_memcpy(out + i, part, rest);
}

template <class T>
void array(array_function function, const T* in, T* out, std::int64_t count) {
  switch (function) {
    case array_function::exp: return each_element<exp_of>(in, out, count);
    case array_function::log: return each_element<log_of>(in, out, count);
    case array_function::tanh: return each_element<tanh_of>(in, out, count);
    case array_function::sigmoid: return each_element<sigmoid_of>(in, out, count);
  }
}
