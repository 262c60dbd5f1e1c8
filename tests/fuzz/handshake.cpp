// The hello and its answer or challenge, prefix and body. Input: u8 (odd: an answer), then the bytes as they come off the stream.

#include "transport/sockets/handshake.hpp"
#include "targets.hpp"

namespace fuzz {
namespace handshake_target {
namespace {

namespace d = ferry::detail;

bytes body_of(const std::vector<std::byte>& whole) { return bytes(whole).subspan(d::handshake_prefix::encoded_size); }

void check_hello(bytes body) {
  std::optional<d::nonce> once;
  const ferry::hello decoded = d::decode_hello(body, &once);
  require(once.has_value() == ((decoded.features & ferry::feature_authenticated) != 0),
          "a hello that offers a proof has a nonce");
  require(decoded.name.size() <= d::longest_name && decoded.target.size() <= d::longest_name &&
              decoded.group.size() <= d::longest_group,
          "the texts of a hello are bounded");
  const auto again = d::encode_hello(decoded, once ? &*once : nullptr);
  // Bytes behind the known fields are of a later version.
  require(body_of(again).size() <= body.size() && same(body_of(again), body.first(body_of(again).size())),
          "a hello encodes to what it was decoded from");
}

void check_answer(bytes body) {
  const auto decoded = d::decode_answer(body);
  if (const auto* reply = std::get_if<ferry::hello_reply>(&decoded)) {
    const auto again = d::encode_answer(*reply);
    require(body_of(again).size() <= body.size() && same(body_of(again), body.first(body_of(again).size())),
            "an answer encodes to what it was decoded from");
    return;
  }
  if (const auto* asked = std::get_if<d::challenge>(&decoded)) {
    const auto again = d::encode_challenge(asked->once);
    require(body_of(again).size() <= body.size() && same(body_of(again), body.first(body_of(again).size())),
            "a challenge encodes to what it was decoded from");
    return;
  }
  const auto& refusal = std::get<d::refusal>(decoded);
  require(ferry::errc_name(refusal.code) != "unknown", "a refusal has a known reason");
  const auto encoded = d::encode_answer(refusal);
  const auto again = d::decode_answer(body_of(encoded));
  require(std::get<d::refusal>(again).code == refusal.code && std::get<d::refusal>(again).text == refusal.text,
          "a refusal survives its encoding");
}

void run(bytes input) {
  source from(input);
  const bool answer = (from.number<std::uint8_t>() & 1U) != 0;
  const bytes prefix_bytes = from.take(d::handshake_prefix::encoded_size);
  if (prefix_bytes.size() != d::handshake_prefix::encoded_size) return;
  accepted([&] {
    const auto prefix =
        d::handshake_prefix::decode(prefix_bytes.data(), answer ? d::answer_magic : d::hello_magic, "x");
    prefix.check_size("x");
    require(prefix.body_bytes <= d::longest_handshake_body, "the body is bounded");
    require(!prefix.version_text("x").empty(), "the versions have a text");
    if (!prefix.compatible() || from.rest().size() < prefix.body_bytes) return;
    const bytes body = from.take(prefix.body_bytes);
    // A proof cannot be found by chance.
    if (ferry::authentication_available()) {
      require(!d::check_proof("secret", prefix_bytes, prefix_bytes, body), "no proof is right by chance");
      std::vector<std::byte> whole(prefix_bytes.begin(), prefix_bytes.end());
      whole.insert(whole.end(), body.begin(), body.end());
      require(!d::answer_signed(whole, "secret", prefix_bytes, prefix_bytes), "no answer is signed by chance");
    }
    if (answer) {
      check_answer(body);
    } else {
      check_hello(body);
    }
  });
}

void seeds(const seed_sink& sink) {
  ferry::hello hello;
  hello.group = "0123456789abcdef";
  hello.name = "worker0";
  hello.target = "worker1";
  hello.id = ferry::worker_id{3};
  hello.incarnation = ferry::incarnation_id{4};
  const d::nonce once{std::byte{1}, std::byte{2}};
  sink("hello-offer", seed().number(std::uint8_t{0}).add(d::encode_hello(hello, &once)));
  sink("challenge", seed().number(std::uint8_t{1}).add(d::encode_challenge(once)));
  sink("hello", seed().number(std::uint8_t{0}).add(d::encode_hello(hello)));
  hello.name = std::string(d::longest_name, 'n');
  hello.group = std::string(d::longest_group, 'g');
  sink("hello-long", seed().number(std::uint8_t{0}).add(d::encode_hello(hello)));
  sink(
      "answer",
      seed().number(std::uint8_t{1}).add(d::encode_answer(ferry::hello_reply{"worker1", ferry::worker_id{1}, {5}, 6})));
  sink("refusal", seed().number(std::uint8_t{1}).add(d::encode_answer(d::refusal{ferry::errc::fenced, "gone"})));
}

}  // namespace
}  // namespace handshake_target

const target handshake{"handshake", &handshake_target::run, &handshake_target::seeds};

}  // namespace fuzz
