#include "options.hpp"

namespace ferry_run {

const char* const usage_text = R"(usage: ferry-run -n COUNT [OPTIONS] [--] PROGRAM [ARGUMENTS]

Starts COUNT workers of PROGRAM on this machine and waits for them. Each worker gets in its environment
  RANK, WORLD_SIZE              its number, from 0, and the number of workers on all machines
  LOCAL_RANK, LOCAL_WORLD_SIZE  the same for the workers of this machine
  NODE_RANK, GROUP_RANK         the number of this machine, from 0
  GROUP_WORLD_SIZE              the number of machines
  MASTER_ADDR, MASTER_PORT      where worker 0 serves the rendezvous
  FERRY_SECRET                  their shared secret: $FERRY_SECRET, else on one machine a random one, unless
                                FERRY_SECRET_FILE is set or FERRY_ALLOW_UNAUTHENTICATED is 1 or true
  FERRY_FLIGHT_DIRECTORY        DIR of --flight-records, if given

  -n, --workers COUNT  workers on this machine, 1 to 4096; also --nproc-per-node
  --port PORT          MASTER_PORT; default: $MASTER_PORT, else a free port; also --master-port
  --addr ADDRESS       MASTER_ADDR; default: $MASTER_ADDR, else 127.0.0.1; also --master-addr
                       In a worker of another run (RANK is set) these variables count with --nnodes above 1 only
  --grace SECONDS      time for workers to end after a signal or a failure before they are killed; default 10
  --flight-records DIR workers keep their last events in files there, which stay when a worker is killed; ferry-run then
                       says how to read the file. DIR is made if it is missing; best in memory, as in /dev/shm
  --help, --version

On several machines (nodes), start one ferry-run on each. They connect to the ferry-run of node 0:
  --nnodes N              number of nodes, 1 to 1024; default 1
  --rdzv HOST:PORT        rendezvous: an address of node 0 that the others can reach, and a free port there; also
                          --rdzv-endpoint; default: --addr and --port or their variables
  --node-rank R           the number of this node, on all nodes or on none. Without it, the machine that has the address
                          HOST is node 0, and the others are numbered in order of arrival
  --rdzv-id ID            a name for the job; a ferry-run of another job is refused; default: empty
  --rdzv-timeout SECONDS  time to wait for all nodes; default 300
Nodes may have different COUNTs. Ranks increase with the node number. MASTER_ADDR is HOST, or --addr of node 0;
MASTER_PORT is --port of node 0 if --rdzv is given, too, else a free port on node 0. A failure on one node ends the
workers of all.

Each line that a worker writes is passed on with its rank in front: "[2] text". Workers read nothing on standard input.
SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are forwarded to all workers of this node and their children.
When a worker fails, the others are ended: SIGTERM, then SIGKILL after the grace time. Processes left behind in its
process group end with it.

Exit status: 0 if all workers of all nodes succeeded, else that of the first that failed (128 + N if signal N ended it);
127 if the program was not found, 126 if it cannot be run, 2 for a wrong command line or nodes with inconsistent
options, 125 for a failure of ferry-run itself, such as a node that is missing or lost.
)";

}  // namespace ferry_run
