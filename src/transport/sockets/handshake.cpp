#include "handshake.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

#include <ferry/base/detail/little_endian.hpp>

namespace ferry::inline v0::detail {
namespace {

class writer {
 public:
  explicit writer(const std::array<unsigned char, 8>& magic) {
    for (unsigned char byte : magic) out_.push_back(std::byte{byte});
    number(protocol_version);
    number(oldest_protocol_version);
    number(std::uint32_t{0});
  }
  template <class Number>
  void number(Number value) {
    out_.resize(out_.size() + sizeof value);
    store_le(out_.data() + out_.size() - sizeof value, value);
  }
  void text(std::string_view what, std::string_view value, std::size_t longest) {
    if (value.size() > longest) {
      throw_error(errc::invalid_argument,
                  fmt::format("the {} has {} bytes, more than {}", what, value.size(), longest));
    }
    number(static_cast<std::uint16_t>(value.size()));
    // g++ 14 takes an insert() of the whole range for one into an empty vector without room.
    std::transform(value.begin(), value.end(), std::back_inserter(out_),
                   [](char c) { return static_cast<std::byte>(c); });
  }
  void raw(std::span<const std::byte> bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  std::vector<std::byte> finish() {
    set_size(out_);
    return std::move(out_);
  }
  static void set_size(std::vector<std::byte>& message) {
    store_le(message.data() + 16, static_cast<std::uint32_t>(message.size() - handshake_prefix::encoded_size));
  }

 private:
  std::vector<std::byte> out_;
};

class reader {
 public:
  explicit reader(std::span<const std::byte> in) : in_(in) {}
  template <class Number>
  Number number(std::string_view what) {
    return load_le<Number>(take(what, sizeof(Number)).data());
  }
  nonce once() {
    nonce result{};
    const auto raw = take("nonce", result.size());
    std::copy(raw.begin(), raw.end(), result.begin());
    return result;
  }
  std::string text(std::string_view what, std::size_t longest) {
    const std::size_t size = number<std::uint16_t>(what);
    if (size > longest) {
      throw_error(errc::handshake_failed,
                  fmt::format("the {} in the handshake has {} bytes, more than {}", what, size, longest));
    }
    const auto raw = take(what, size);
    return {reinterpret_cast<const char*>(raw.data()), size};
  }

 private:
  std::span<const std::byte> take(std::string_view what, std::size_t bytes) {
    if (in_.size() < bytes) throw_error(errc::handshake_failed, fmt::format("the handshake ends before the {}", what));
    const auto result = in_.first(bytes);
    in_ = in_.subspan(bytes);
    return result;
  }
  std::span<const std::byte> in_;
};

// The status of an answer that is a challenge; refusals use the numbers of errc, which begin at 100.
constexpr std::uint32_t challenge_status = 1;

// The role of the prover; never the same at both ends.
constexpr std::string_view connecting_role = "ferry connecting worker";
constexpr std::string_view accepting_role = "ferry accepting worker";

std::string versions(std::uint32_t newest, std::uint32_t oldest) {
  return newest == oldest ? fmt::format("version {}", newest) : fmt::format("versions {} to {}", oldest, newest);
}

}  // namespace

handshake_prefix handshake_prefix::decode(const std::byte* in, const std::array<unsigned char, 8>& magic,
                                          std::string_view peer) {
  if (std::memcmp(in, magic.data(), magic.size()) != 0) {
    throw_error(errc::handshake_failed, fmt::format("the peer at {} does not speak ferry", peer));
  }
  reader rest({in + magic.size(), encoded_size - magic.size()});
  handshake_prefix result;
  result.version = rest.number<std::uint32_t>("version");
  result.oldest = rest.number<std::uint32_t>("version");
  result.body_bytes = rest.number<std::uint32_t>("length");
  return result;
}

void handshake_prefix::check_size(std::string_view peer) const {
  if (body_bytes > longest_handshake_body) {
    throw_error(errc::handshake_failed, fmt::format("the peer at {} announced a handshake of {} bytes, more than {}",
                                                    peer, body_bytes, longest_handshake_body));
  }
}

bool handshake_prefix::compatible() const noexcept {
  const auto common = std::min(version, protocol_version);
  return common >= oldest && common >= oldest_protocol_version;
}

std::string handshake_prefix::version_text(std::string_view peer) const {
  return fmt::format("the peer at {} speaks protocol {}, this process speaks {}; run the same ferry release on both",
                     peer, versions(version, oldest), versions(protocol_version, oldest_protocol_version));
}

std::vector<std::byte> encode_hello(const hello& self, const nonce* once) {
  writer out(hello_magic);
  out.number((self.features & ~feature_authenticated) | (once ? feature_authenticated : 0));
  out.number(self.incarnation.value);
  out.number(static_cast<std::uint32_t>(self.id.value));
  out.number(self.joined);
  out.text("group", self.group, longest_group);
  out.text("worker name", self.name, longest_name);
  out.text("target's name", self.target, longest_name);
  if (once) out.raw(*once);
  return out.finish();
}

std::vector<std::byte> encode_answer(const hello_reply& reply) {
  writer out(answer_magic);
  out.number(std::uint32_t{0});
  out.number(reply.features);
  out.number(reply.incarnation.value);
  out.number(static_cast<std::uint32_t>(reply.id.value));
  out.text("worker name", reply.name, longest_name);
  return out.finish();
}

std::vector<std::byte> encode_answer(const refusal& why) {
  writer out(answer_magic);
  out.number(static_cast<std::uint32_t>(why.code));
  out.text("text", std::string_view(why.text).substr(0, longest_refusal), longest_refusal);
  return out.finish();
}

std::vector<std::byte> encode_challenge(const nonce& once) {
  writer out(answer_magic);
  out.number(challenge_status);
  out.raw(once);
  return out.finish();
}

std::vector<std::byte> encode_proof(std::string_view secret, std::span<const std::byte> hello,
                                    std::span<const std::byte> challenge) {
  writer out(hello_magic);
  out.raw(prove(secret, connecting_role, {hello, challenge}));
  return out.finish();
}

bool check_proof(std::string_view secret, std::span<const std::byte> hello, std::span<const std::byte> challenge,
                 std::span<const std::byte> proof_body) {
  return same_proof(prove(secret, connecting_role, {hello, challenge}), proof_body);
}

void sign_answer(std::vector<std::byte>& answer, std::string_view secret, std::span<const std::byte> hello,
                 std::span<const std::byte> challenge) {
  answer.resize(answer.size() + sizeof(proof));
  writer::set_size(answer);  // the proof covers the answer as it is read, its length included
  const auto text = std::span(answer).first(answer.size() - sizeof(proof));
  const proof made = prove(secret, accepting_role, {hello, challenge, text});
  std::copy(made.begin(), made.end(), answer.end() - sizeof(proof));
}

bool answer_signed(std::span<const std::byte> answer, std::string_view secret, std::span<const std::byte> hello,
                   std::span<const std::byte> challenge) {
  if (answer.size() < handshake_prefix::encoded_size + sizeof(proof)) return false;
  const auto text = answer.first(answer.size() - sizeof(proof));
  return same_proof(prove(secret, accepting_role, {hello, challenge, text}), answer.last(sizeof(proof)));
}

hello decode_hello(std::span<const std::byte> body, std::optional<nonce>* once) {
  reader in(body);
  hello result;
  result.features = in.number<std::uint64_t>("features");
  result.incarnation.value = in.number<std::uint64_t>("incarnation");
  result.id.value = static_cast<std::int32_t>(in.number<std::uint32_t>("worker id"));
  result.joined = in.number<std::uint64_t>("place in the order of joins");
  result.group = in.text("group", longest_group);
  result.name = in.text("worker name", longest_name);
  result.target = in.text("target's name", longest_name);
  if ((result.features & feature_authenticated) != 0) {
    const auto given = in.once();
    if (once) *once = given;
  }
  return result;
}

std::variant<hello_reply, refusal, challenge> decode_answer(std::span<const std::byte> body) {
  reader in(body);
  const auto status = in.number<std::uint32_t>("status");
  if (status == challenge_status) return challenge{in.once()};
  if (status != 0) {
    auto code = static_cast<errc>(static_cast<std::int32_t>(status));
    if (errc_name(code) == "unknown") code = errc::handshake_failed;  // from a later build
    return refusal{code, in.text("text", longest_refusal)};
  }
  hello_reply result;
  result.features = in.number<std::uint64_t>("features");
  result.incarnation.value = in.number<std::uint64_t>("incarnation");
  result.id.value = static_cast<std::int32_t>(in.number<std::uint32_t>("worker id"));
  result.name = in.text("worker name", longest_name);
  return result;
}

}  // namespace ferry::inline v0::detail
