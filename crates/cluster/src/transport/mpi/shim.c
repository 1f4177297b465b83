/* What Cellway needs of MPI, in types that are the same everywhere. Those of mpi.h differ
   from one MPI to the next, so the mpicc of the MPI in use compiles this file.

   Every function returns 0, LOST if it ran into a peer that is gone, or MPI's error. */

#include <mpi.h>
#if defined(OPEN_MPI)
#include <mpi-ext.h>
#endif
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOST (-1)
#define ALREADY_STARTED (-2)
#define NO_THREADS (-3)

/* Of MPICH 5 the same calls make mpiexec fail an assertion when a peer dies. */
#if defined(OPEN_MPI) && defined(OMPI_HAVE_MPI_EXT_FTMPI) && OMPI_HAVE_MPI_EXT_FTMPI
#define REPORTS_LOSSES 1
#else
#define REPORTS_LOSSES 0
#endif

/* A handle of any MPI: an int or a pointer. */
typedef uint64_t handle;
_Static_assert(sizeof(MPI_Request) <= sizeof(handle), "a request fits");
_Static_assert(sizeof(MPI_Message) <= sizeof(handle), "a matched message fits");

static int32_t outcome(int error)
{
#if REPORTS_LOSSES
    if (error != MPI_SUCCESS) {
        int class = error;
        MPI_Error_class(error, &class);
        if (class == MPIX_ERR_PROC_FAILED || class == MPIX_ERR_PROC_FAILED_PENDING)
            return LOST;
    }
#endif
    return error;
}

struct started {
    int32_t own, peers, reports_losses;
};

static int32_t start(struct started *started)
{
    int already = 0, threads = 0, own = 0, peers = 0, error;
    MPI_Initialized(&already);
    if (already)
        return ALREADY_STARTED;
    error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &threads);
    if (error != MPI_SUCCESS)
        return error;
    if (threads < MPI_THREAD_SERIALIZED)
        return NO_THREADS;
    /* MPI 4 raises there what belongs to no communicator. */
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_rank(MPI_COMM_WORLD, &own);
    if (error == MPI_SUCCESS)
        error = MPI_Comm_size(MPI_COMM_WORLD, &peers);
    *started = (struct started){own, peers, REPORTS_LOSSES};
    return error;
}

static int32_t send(const void *bytes, int32_t count, int32_t to, int32_t tag, handle *sending)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int error = MPI_Isend(bytes, count, MPI_BYTE, to, tag, MPI_COMM_WORLD, &request);
    memcpy(sending, &request, sizeof request);
    return outcome(error);
}

struct matched {
    int32_t is_there, from, tag, count;
    handle message;
};

/* The next message of any peer, if there is one: nobody else can receive it then. */
static int32_t match(struct matched *matched)
{
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    int is_there = 0, count = 0;
    int error = MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &is_there, &message, &status);
    matched->is_there = error == MPI_SUCCESS && is_there;
    if (!matched->is_there)
        return outcome(error);
    error = MPI_Get_count(&status, MPI_BYTE, &count);
    matched->from = status.MPI_SOURCE;
    matched->tag = status.MPI_TAG;
    matched->count = count == MPI_UNDEFINED ? -1 : count;
    memcpy(&matched->message, &message, sizeof message);
    return outcome(error);
}

static int32_t receive(void *bytes, int32_t count, handle matched, handle *receiving)
{
    MPI_Message message;
    MPI_Request request = MPI_REQUEST_NULL;
    int error;
    memcpy(&message, &matched, sizeof message);
    error = MPI_Imrecv(bytes, count, MPI_BYTE, &message, &request);
    memcpy(receiving, &request, sizeof request);
    return outcome(error);
}

/* Whether MPI is through with the bytes; it can be after an error too. */
static int32_t test(handle *transfer, int32_t *is_done)
{
    MPI_Request request;
    int done = 0, error;
    memcpy(&request, transfer, sizeof request);
    error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    *is_done = done || request == MPI_REQUEST_NULL;
    memcpy(transfer, &request, sizeof request);
    return outcome(error);
}

/* Peers that are gone; until this is asked, `match` runs into each. */
static int32_t lost(int32_t *peers, int32_t room, int32_t *count)
{
    *count = 0;
#if REPORTS_LOSSES
    MPI_Group failed, all;
    int number, acknowledged, error = MPIX_Comm_get_failed(MPI_COMM_WORLD, &failed);
    if (error != MPI_SUCCESS)
        return error;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_size(failed, &number);
    for (int at = 0; at < number && at < room; at++) {
        int peer = MPI_UNDEFINED;
        MPI_Group_translate_ranks(failed, 1, &at, all, &peer);
        if (peer >= 0)
            peers[(*count)++] = peer;
    }
    MPI_Group_free(&all);
    MPI_Group_free(&failed);
    return MPIX_Comm_ack_failed(MPI_COMM_WORLD, number, &acknowledged);
#else
    (void)peers, (void)room;
    return 0;
#endif
}

static int32_t end(void)
{
    return MPI_Finalize();
}

static void leave(int32_t code)
{
    _exit(code);
}

static void text_of(int32_t error, char *text, int32_t room)
{
    char all[MPI_MAX_ERROR_STRING + 1] = "";
    int count = 0;
    MPI_Error_string(error, all, &count);
    snprintf(text, (size_t)room, "%s", all);
}

/* Its name and version; of the one this was compiled for, the beginning of that or a part. */
static void library(char *text, char *compiled_for, int32_t room)
{
    char all[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int count = 0;
    MPI_Get_library_version(all, &count);
    snprintf(text, (size_t)room, "%s", all);
#if defined(OPEN_MPI)
    snprintf(compiled_for, (size_t)room, "Open MPI v%d.%d.", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION);
#elif defined(MPICH_VERSION)
    snprintf(compiled_for, (size_t)room, "%s", MPICH_VERSION);
#else
    snprintf(compiled_for, (size_t)room, "%s", "");
#endif
}

/* Cellway looks up this table alone; its first number changes with it. */
const struct {
    int32_t version;
    int32_t (*start)(struct started *);
    int32_t (*send)(const void *, int32_t, int32_t, int32_t, handle *);
    int32_t (*match)(struct matched *);
    int32_t (*receive)(void *, int32_t, handle, handle *);
    int32_t (*test)(handle *, int32_t *);
    int32_t (*lost)(int32_t *, int32_t, int32_t *);
    int32_t (*end)(void);
    void (*leave)(int32_t);
    void (*text_of)(int32_t, char *, int32_t);
    void (*library)(char *, char *, int32_t);
} cellway_mpi = {1, start, send, match, receive, test, lost, end, leave, text_of, library};
