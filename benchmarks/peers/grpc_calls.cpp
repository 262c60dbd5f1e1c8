// Unary calls of gRPC with plain bytes, which Protocol Buffers need not encode: the client waits on a completion queue, the server
// answers in callbacks. These were the fastest of its interfaces where all were measured.

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "../support/statistics.hpp"
#include "calls.hpp"

namespace {

grpc::ByteBuffer borrowed(const std::vector<char>& bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  return {&slice, 1};
}

struct service final : grpc::CallbackGenericService {
  explicit service(std::size_t size) : reply(size, 'r') {}

  struct answer final : grpc::ServerGenericBidiReactor {
    explicit answer(const std::vector<char>& bytes) : reply(borrowed(bytes)) { StartRead(&request); }
    void OnReadDone(bool good) override {
      if (good) {
        StartWriteAndFinish(&reply, {}, grpc::Status::OK);
      } else {
        Finish(grpc::Status(grpc::StatusCode::INTERNAL, "no request"));
      }
    }
    void OnDone() override { delete this; }
    grpc::ByteBuffer request;
    grpc::ByteBuffer reply;
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new answer(reply);
  }

  const std::vector<char> reply;
};

void serve(const peer::job& of, const peer::announcement& announce) {
  service calls(of.reply_bytes());
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterCallbackGenericService(&calls);
  const std::string path = "unix:" + peer::fresh_path();
  int port = 0;
  if (of.transport == "tcp") {
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  } else {
    builder.AddListeningPort(path, grpc::InsecureServerCredentials());
  }
  const auto running = builder.BuildAndStart();
  if (!running) throw std::runtime_error("the server does not start");
  announce(of.transport == "tcp" ? "127.0.0.1:" + std::to_string(port) : path);
  running->Wait();
}

struct client {
  struct call {
    grpc::ClientContext context;
    grpc::ByteBuffer request;
    grpc::ByteBuffer reply;
    grpc::Status status;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  };

  explicit client(const std::string& address) {
    grpc::ChannelArguments options;
    options.SetMaxReceiveMessageSize(-1);
    stub = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), options));
  }
  void start(const std::vector<char>& bytes) {
    auto* one = new call;
    one->request = borrowed(bytes);
    one->reader = stub->PrepareUnaryCall(&one->context, "/calls/call", one->request, &queue);
    one->reader->StartCall();
    one->reader->Finish(&one->reply, &one->status, one);
  }
  void end_one() {
    void* tag = nullptr;
    bool good = false;
    if (!queue.Next(&tag, &good)) throw std::runtime_error("the completion queue has ended");
    const std::unique_ptr<call> one(static_cast<call*>(tag));
    if (!one->status.ok()) throw std::runtime_error(one->status.error_message());
  }

  std::unique_ptr<grpc::GenericStub> stub;
  grpc::CompletionQueue queue;
};

std::vector<double> measure(const peer::job& of, const std::string& address) {
  client calling(address);
  const std::vector<char> bytes(of.bytes, 'q');
  const auto call = [&] {
    calling.start(bytes);
    calling.end_one();
  };
  for (int warm = 0; warm != 10; ++warm) call();
  if (of.what != peer::kind::rate) return ferry_bench::time_each(of.window, 3, call);
  return {peer::per_second(
      of, [&] { calling.start(bytes); }, [&] { calling.end_one(); })};
}

}  // namespace

int main(int argc, char** argv) {
  return peer::run(argc, argv,
                   {"gRPC " + grpc::Version() + " (unary calls of plain bytes, completion queue, callback server)",
                    {"tcp", "unix"},
                    serve,
                    measure});
}
