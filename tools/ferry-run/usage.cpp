#include "options.hpp"

namespace ferry_run {

const char* const usage_text = R"(usage: ferry-run -n COUNT [OPTIONS] [--] PROGRAM [ARGUMENTS]

Starts COUNT workers of PROGRAM on this machine and waits for them. Each one finds in its environment
  RANK, WORLD_SIZE              its number, from 0, and how many there are on all machines
  LOCAL_RANK, LOCAL_WORLD_SIZE  the same among those of this machine
  NODE_RANK, GROUP_RANK         the number of this machine, from 0
  GROUP_WORLD_SIZE              how many machines there are
  MASTER_ADDR, MASTER_PORT      where worker 0 serves the rendezvous
  FERRY_SECRET                  what they prove to each other: $FERRY_SECRET, else on one machine a random one, unless
                                FERRY_SECRET_FILE or FERRY_ALLOW_UNAUTHENTICATED is set

  -n, --workers COUNT  how many on this machine, 1 to 4096; also --nproc-per-node
  --port PORT          MASTER_PORT; default: $MASTER_PORT, else a free port; also --master-port
  --addr ADDRESS       MASTER_ADDR; default: $MASTER_ADDR, else 127.0.0.1; also --master-addr
  --grace SECONDS      how long workers may take to end after a signal or a failure before they are killed; default 10
  --help, --version

On several machines (nodes), start one ferry-run on each. They meet at the ferry-run of node 0:
  --nnodes N              how many nodes, 1 to 1024; default 1
  --rdzv HOST:PORT        where they meet: an address of node 0 that the others reach, and a free port there; also
                          --rdzv-endpoint; default: what --addr and --port or their variables say
  --node-rank R           the number of this node, on all nodes or on none. Without it, the machine that has the address
                          HOST is node 0, and the others are numbered as they come
  --rdzv-id ID            a name for the job; a ferry-run of another job is turned away; default: empty
  --rdzv-timeout SECONDS  how long to wait for all nodes; default 300
Nodes may have different COUNTs. Ranks go up with the number of the node. MASTER_ADDR is HOST, or --addr of node 0;
MASTER_PORT is --port of node 0 if it says --rdzv, too, else free on node 0. A failure on one node ends the workers of all.

Each line that a worker writes is passed on with its rank before it: "[2] text". Workers read nothing on standard input.
SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to all workers of this node and their children.
When a worker fails, the others are ended: SIGTERM, then SIGKILL after the grace time. What a worker leaves behind in its
process group ends with it.

Exit status: 0 if all workers of all nodes succeeded, else that of the first that failed (128 + N if signal N ended it);
127 if the program was not found, 126 if it cannot be run, 2 for a wrong command line or nodes that contradict each other,
125 for a failure of ferry-run itself, such as a node that is missing or lost.
)";

}  // namespace ferry_run
