/* Copyright (c) 2026, The tandem.spark contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * mpi.h over TCP: every rank has one connection to rank 0, which collects and gives out. The environment says who is who:
 *
 *   TANDEM_RANK, TANDEM_RANKS   this rank, and how many there are (without them: 0 of 1)
 *   TANDEM_MEET                 IPv4:port where rank 0 listens and the others connect
 *   TANDEM_RUN                  a word that is the same for all ranks of one run: one of an earlier run is not let in
 *   TANDEM_LIMIT_S              seconds to wait for the other ranks at the start, and for each answer later
 *
 * A rank that ends closes its connection, and the others then end too, with a message and status 3.
 */
#define _GNU_SOURCE
#include "mpi.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LARGEST 64

struct hello {
  char run[64];
  int32_t rank, ranks;
};

static int rank, ranks = 1, limit_s = 60;
static int line[LARGEST]; /* on rank 0 one connection per other rank, elsewhere [0] only */

static void stop(const char *format, ...) {
  va_list values;
  va_start(values, format);
  fprintf(stderr, "tandem: rank %d of %d: ", rank, ranks);
  vfprintf(stderr, format, values);
  fputc('\n', stderr);
  va_end(values);
  exit(3);
}

static int number(const char *name, int otherwise, int least, int most) {
  const char *text = getenv(name);
  char *end;
  if (text == NULL || *text == '\0') return otherwise;
  long value = strtol(text, &end, 10);
  if (*end != '\0' || value < least || value > most) stop("found %s=%s, wanted %d to %d", name, text, least, most);
  return (int)value;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void ready(int socket_, short what, const char *whom) {
  struct pollfd wait = {.fd = socket_, .events = what};
  int answer;
  do answer = poll(&wait, 1, limit_s * 1000);
  while (answer < 0 && errno == EINTR);
  if (answer == 0) stop("no answer from %s within %d s", whom, limit_s);
  if (answer < 0) stop("poll: %s", strerror(errno));
}

static void transfer(int socket_, void *buffer, size_t size, int sends, const char *whom) {
  char *place = buffer;
  while (size > 0) {
    ready(socket_, sends ? POLLOUT : POLLIN, whom);
    ssize_t done = sends ? send(socket_, place, size, MSG_NOSIGNAL) : recv(socket_, place, size, 0);
    if (done < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (done == 0) stop("%s has ended", whom);
    if (done < 0) stop("the connection to %s is lost: %s", whom, strerror(errno));
    place += done;
    size -= (size_t)done;
  }
}

static const char *name_of(int other) {
  static char name[16];
  snprintf(name, sizeof name, "rank %d", other);
  return name;
}

static void give(int other, const void *buffer, size_t size) {
  transfer(line[other], (void *)buffer, size, 1, name_of(other));
}

static void take(int other, void *buffer, size_t size) { transfer(line[other], buffer, size, 0, name_of(other)); }

static void quick(int socket_) {
  int yes = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

static void let_in(const struct sockaddr_in *meet, const struct hello *own) {
  int yes = 1, door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  double end = now() + limit_s;
  if (door < 0 || setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      bind(door, (const struct sockaddr *)meet, sizeof *meet) != 0 || listen(door, LARGEST) != 0)
    stop("cannot listen on %s: %s", getenv("TANDEM_MEET"), strerror(errno));
  for (int missing = ranks - 1; missing > 0;) {
    struct pollfd wait = {.fd = door, .events = POLLIN};
    double left = end - now();
    if (left <= 0 || poll(&wait, 1, (int)(left * 1000) + 1) == 0) stop("%d rank(s) did not come within %d s", missing, limit_s);
    int guest = accept4(door, NULL, NULL, SOCK_CLOEXEC);
    if (guest < 0) continue;
    struct timeval patience = {.tv_sec = 5};
    struct hello other;
    setsockopt(guest, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    /* a stranger, or a rank of an earlier run, does not end this one */
    if (recv(guest, &other, sizeof other, MSG_WAITALL) != (ssize_t)sizeof other ||
        memcmp(other.run, own->run, sizeof other.run) != 0 || other.ranks != ranks || other.rank < 1 ||
        other.rank >= ranks || line[other.rank] != 0) {
      close(guest);
      continue;
    }
    line[other.rank] = guest;
    quick(guest);
    missing--;
  }
  close(door);
}

static void go_to(const struct sockaddr_in *meet, const struct hello *own) {
  double end = now() + limit_s;
  for (;;) {
    line[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (line[0] < 0) stop("socket: %s", strerror(errno));
    if (connect(line[0], (const struct sockaddr *)meet, sizeof *meet) == 0) break;
    int why = errno;
    close(line[0]);
    if (now() > end) stop("rank 0 does not answer on %s: %s", getenv("TANDEM_MEET"), strerror(why));
    struct timespec pause = {.tv_nsec = 100 * 1000 * 1000};
    nanosleep(&pause, NULL);
  }
  quick(line[0]);
  give(0, own, sizeof *own);
}

static size_t size_of(MPI_Datatype type) {
  switch (type) {
    case MPI_BYTE: return 1;
    case MPI_INT: return sizeof(int);
    case MPI_LONG: return sizeof(long);
    case MPI_LONG_LONG: return sizeof(long long);
    case MPI_INT64_T: return sizeof(int64_t);
    case MPI_DOUBLE: return sizeof(double);
    default: stop("MPI type %d is not known here", type);
  }
  return 0;
}

int MPI_Init(int *argc, char ***argv) {
  (void)argc, (void)argv;
  ranks = number("TANDEM_RANKS", 1, 1, LARGEST);
  rank = number("TANDEM_RANK", 0, 0, ranks - 1);
  limit_s = number("TANDEM_LIMIT_S", 60, 1, 86400);
  if (ranks == 1) return MPI_SUCCESS;
  struct hello own = {.rank = rank, .ranks = ranks};
  const char *run = getenv("TANDEM_RUN"), *where = getenv("TANDEM_MEET");
  if (run == NULL || *run == '\0' || where == NULL) stop("TANDEM_RUN or TANDEM_MEET is not set");
  snprintf(own.run, sizeof own.run, "%s", run);
  struct sockaddr_in meet = {.sin_family = AF_INET};
  char address[INET_ADDRSTRLEN] = "";
  const char *colon = strrchr(where, ':');
  size_t length = colon ? (size_t)(colon - where) : sizeof address;
  int port = colon ? atoi(colon + 1) : 0;
  if (length < sizeof address) memcpy(address, where, length);
  if (port < 1 || port > 65535 || inet_pton(AF_INET, address, &meet.sin_addr) != 1)
    stop("found TANDEM_MEET=%s, wanted IPv4:port", where);
  meet.sin_port = htons((uint16_t)port);
  if (rank == 0) let_in(&meet, &own);
  else go_to(&meet, &own);
  return MPI_Barrier(MPI_COMM_WORLD);
}

int MPI_Finalize(void) {
  MPI_Barrier(MPI_COMM_WORLD);
  for (int other = 0; other < LARGEST; other++)
    if (line[other] > 0) close(line[other]);
  return MPI_SUCCESS;
}

int MPI_Comm_rank(MPI_Comm comm, int *result) {
  (void)comm;
  *result = rank;
  return MPI_SUCCESS;
}

int MPI_Comm_size(MPI_Comm comm, int *result) {
  (void)comm;
  *result = ranks;
  return MPI_SUCCESS;
}

int MPI_Allgather(const void *send, int count, MPI_Datatype type, void *receive, int receive_count,
                  MPI_Datatype receive_type, MPI_Comm comm) {
  size_t size = (size_t)receive_count * size_of(receive_type);
  char *own = (char *)receive + (size_t)rank * size;
  (void)count, (void)type;
  if (send != MPI_IN_PLACE) memcpy(own, send, size);
  if (rank == 0)
    for (int other = 1; other < ranks; other++) take(other, (char *)receive + (size_t)other * size, size);
  else
    give(0, own, size);
  return MPI_Bcast(receive, receive_count * ranks, receive_type, 0, comm);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *made) {
  int colors[LARGEST];
  (void)key;
  MPI_Allgather(&color, 1, MPI_INT, colors, 1, MPI_INT, comm);
  for (int other = 0; other < ranks; other++)
    if (colors[other] != color) stop("NCCL_TESTS_SPLIT is set, wanted one group of all ranks");
  *made = comm;
  return MPI_SUCCESS;
}

int MPI_Comm_free(MPI_Comm *comm) {
  *comm = 0;
  return MPI_SUCCESS;
}

int MPI_Barrier(MPI_Comm comm) {
  char words[LARGEST] = {0};
  return MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, words, 1, MPI_BYTE, comm);
}

int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  size_t size = (size_t)count * size_of(type);
  (void)comm;
  if (root != 0) stop("MPI_Bcast from rank %d is not known here", root);
  if (rank != 0) take(0, buffer, size);
  else
    for (int other = 1; other < ranks; other++) give(other, buffer, size);
  return MPI_SUCCESS;
}

int MPI_Gather(const void *send, int count, MPI_Datatype type, void *receive, int receive_count,
               MPI_Datatype receive_type, int root, MPI_Comm comm) {
  size_t size = (size_t)count * size_of(type);
  (void)receive_count, (void)receive_type, (void)comm;
  if (root != 0) stop("MPI_Gather to rank %d is not known here", root);
  if (rank != 0) {
    give(0, send, size);
    return MPI_SUCCESS;
  }
  if (send != MPI_IN_PLACE) memcpy(receive, send, size);
  for (int other = 1; other < ranks; other++) take(other, (char *)receive + (size_t)other * size, size);
  return MPI_SUCCESS;
}

#define FOLD(kind)                                                             \
  do {                                                                         \
    kind *a = total, *b = part;                                                \
    for (int i = 0; i < count; i++)                                            \
      a[i] = op == MPI_SUM ? a[i] + b[i] : (op == MPI_MIN) == (b[i] < a[i]) ? b[i] : a[i]; \
  } while (0)

static void fold(void *total, void *part, int count, MPI_Datatype type, MPI_Op op) {
  if (op != MPI_SUM && op != MPI_MIN && op != MPI_MAX) stop("MPI operation %d is not known here", op);
  switch (type) {
    case MPI_INT: FOLD(int); break;
    case MPI_LONG: FOLD(long); break;
    case MPI_LONG_LONG: FOLD(long long); break;
    case MPI_INT64_T: FOLD(int64_t); break;
    case MPI_DOUBLE: FOLD(double); break;
    default: stop("MPI type %d cannot be reduced here", type);
  }
}

int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  size_t size = (size_t)count * size_of(type);
  if (send != MPI_IN_PLACE) memcpy(receive, send, size);
  if (rank != 0) give(0, receive, size);
  else {
    void *part = malloc(size);
    if (part == NULL) stop("no memory");
    for (int other = 1; other < ranks; other++) {
      take(other, part, size);
      fold(receive, part, count, type, op);
    }
    free(part);
  }
  return MPI_Bcast(receive, count, type, 0, comm);
}
