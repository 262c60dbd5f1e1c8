@0xb6d0a5f1c3e2984d;

interface Calls {
  echo @0 (data :Data) -> (data :Data);
  size @1 (data :Data) -> (size :UInt64);
}
