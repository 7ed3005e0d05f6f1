/* Copyright (c) 2026, The tandem.spark contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The few calls of MPI that nccl-tests makes, over plain TCP, so that its ranks need no mpirun and no SSH between
 * nodes: each is started on its own node with the environment that mpi.c describes.
 */
#ifndef TANDEM_MPI_H
#define TANDEM_MPI_H

#ifdef __cplusplus
extern "C" {
#endif

typedef int MPI_Comm;
typedef int MPI_Datatype;
typedef int MPI_Op;

#define MPI_SUCCESS 0
#define MPI_COMM_WORLD 1
#define MPI_IN_PLACE ((void *)-1)

enum { MPI_DATATYPE_NULL, MPI_BYTE, MPI_INT, MPI_LONG, MPI_LONG_LONG, MPI_INT64_T, MPI_DOUBLE };
enum { MPI_OP_NULL, MPI_SUM, MPI_MIN, MPI_MAX };

int MPI_Init(int *argc, char ***argv);
int MPI_Finalize(void);
int MPI_Comm_rank(MPI_Comm comm, int *rank);
int MPI_Comm_size(MPI_Comm comm, int *size);
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *made);
int MPI_Comm_free(MPI_Comm *comm);
int MPI_Barrier(MPI_Comm comm);
int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm);
int MPI_Gather(const void *send, int count, MPI_Datatype type, void *receive, int receive_count,
               MPI_Datatype receive_type, int root, MPI_Comm comm);
int MPI_Allgather(const void *send, int count, MPI_Datatype type, void *receive, int receive_count,
                  MPI_Datatype receive_type, MPI_Comm comm);
int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);

#ifdef __cplusplus
}
#endif
#endif
