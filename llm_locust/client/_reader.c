/* Reader of sockets: a thread that stamps what arrives, and never waits for the interpreter.
 *
 * One thread a Reader waits for sockets (epoll), reads them (recvmsg) and keeps their bytes, each read with the
 * kernel's receive stamp and the time at which the program had it. It holds no GIL and calls no Python. It wakes
 * Python (an eventfd, the bell) only when there is something to do: the response is complete, a connection ended,
 * enough bytes are unread, or somebody asked for every read.
 *
 * It parses nothing that a server sent but what says where a response ends (Framing).
 *
 * Locks: there is one, Reader.lock. It guards all slots, the ready list and what all hold. It is held for one
 * recvmsg that does not block, or for a look at one slot; never while a Python object is made, never while the
 * thread waits. So a slot that Python drops is in nobody's hands, and a token of a dropped slot is found out by its
 * generation.
 *
 * Bounds: what a connection may have unread (then it is not read until it is taken, and TCP holds the server back),
 * what all may have together, the number of slots.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES 65536         /* of one recvmsg */
#define EVENTS 256               /* of one epoll_wait */
#define MOST_SLOTS (1u << 20)    /* the low 20 bits of a token */
#define FIRST_ROOM 4096          /* of a slot's buffer */
#define MOST_UNBODIED (256 << 10) /* consecutive bytes of framing without a byte of the body */
#define SECOND_NS 1000000000LL
#define BUSY_SLOTS 32            /* from here on the thread pauses after each look: most of a read's cost is to wake for it */
#define PAUSE_NS 300000          /* the kernel's stamps do not depend on it; only packets of one connection within it are one read */
#ifndef SO_TIMESTAMPNS
#define SO_TIMESTAMPNS 35
#endif

/* ---- where a response ends ---------------------------------------------------------------------------------- */

enum Kind { BY_LENGTH, BY_CHUNKS, BY_END };
enum State { SIZE_FIRST, SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER_FIRST, TRAILER, TRAILER_LF, LAST_LF, DONE, BROKEN };

typedef struct {
    enum Kind kind;
    enum State state;
    int64_t left;      /* of the body, or of the chunk */
    int64_t unbodied;  /* bytes of framing since the last byte of the body */
    const char *error; /* a constant; NULL unless BROKEN */
} Framing;

static void framing_begin(Framing *f, enum Kind kind, int64_t length) {
    *f = (Framing){.kind = kind, .state = kind == BY_CHUNKS ? SIZE_FIRST : DATA, .left = length};
    if (kind == BY_LENGTH && length == 0) f->state = DONE;
}

static void framing_break(Framing *f, const char *error) {
    f->state = BROKEN;
    f->error = error;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One byte of framing. */
static void framing_step(Framing *f, char c) {
    int digit;
    if (++f->unbodied > MOST_UNBODIED) {
        framing_break(f, "chunk extensions or trailers have more than 256 KiB");
        return;
    }
    switch (f->state) {
    case SIZE_FIRST:
    case SIZE:
        digit = hex_digit(c);
        if (digit >= 0) {
            if (f->state == SIZE_FIRST) f->left = 0;
            if (f->left > (INT64_MAX >> 8)) framing_break(f, "invalid chunk size");
            else f->left = f->left * 16 + digit, f->state = SIZE;
        } else if (f->state == SIZE_FIRST) framing_break(f, "invalid chunk size");
        else if (c == '\r') f->state = SIZE_LF;
        else if (c == ';' || c == ' ' || c == '\t') f->state = EXTENSION;
        else framing_break(f, "invalid chunk size");
        break;
    case EXTENSION:
        if (c == '\r') f->state = SIZE_LF;
        else if (c == '\n') framing_break(f, "invalid chunk extension");
        break;
    case SIZE_LF:
        if (c != '\n') framing_break(f, "invalid chunk size");
        else f->state = f->left ? DATA : TRAILER_FIRST;
        break;
    case DATA_CR:
        if (c == '\r') f->state = DATA_LF;
        else framing_break(f, "a chunk is longer than its size");
        break;
    case DATA_LF:
        if (c == '\n') f->state = SIZE_FIRST;
        else framing_break(f, "a chunk is longer than its size");
        break;
    case TRAILER_FIRST:
        f->state = c == '\r' ? LAST_LF : TRAILER;
        if (c == '\n') framing_break(f, "invalid trailer");
        break;
    case TRAILER:
        if (c == '\r') f->state = TRAILER_LF;
        else if (c == '\n') framing_break(f, "invalid trailer");
        break;
    case TRAILER_LF:
        if (c == '\n') f->state = TRAILER_FIRST;
        else framing_break(f, "invalid trailer");
        break;
    case LAST_LF:
        if (c == '\n') f->state = DONE;
        else framing_break(f, "invalid trailer");
        break;
    default:
        break;
    }
}

/* Take bytes; return how many of them belong to the response: fewer than all if it ended, or broke, before.
 * out: room for as many bytes of the body, or NULL; *body: how many there are. */
static size_t framing_feed(Framing *f, const char *in, size_t n, char *out, size_t *body) {
    size_t at = 0;
    *body = 0;
    while (at < n && f->state < DONE) {
        if (f->state == DATA) {
            size_t part = n - at;
            if (f->kind != BY_END && (int64_t)part > f->left) part = (size_t)f->left;
            if (out != NULL) memcpy(out + *body, in + at, part);
            at += part;
            *body += part;
            f->unbodied = 0;
            if (f->kind != BY_END && (f->left -= (int64_t)part) == 0)
                f->state = f->kind == BY_CHUNKS ? DATA_CR : DONE;
        } else framing_step(f, in[at++]);
    }
    return at;
}

/* ---- slots ---------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t end, kernel_ns, program_ns; /* bytes up to and with this read; realtime, 0 without a stamp; monotonic */
} Mark;

typedef struct {
    int fd; /* -1: the slot is free */
    uint32_t generation, next_free;
    int watched, ready, framed, over; /* over: 1 the peer's end, or -errno */
    Framing framing;                  /* of what comes, if framed */
    char *bytes;
    size_t size, room;
    Mark *marks;
    size_t count, rooms;
} Slot;

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    int running; /* there is a thread to be joined */
    atomic_int stop;
    int epoll, bell, wake;
    size_t ring_at, most_unread, most_held;
    pthread_mutex_t lock; /* of everything below */
    int rung;             /* the bell has rung, and ready() was not called since */
    Slot *slots;
    uint32_t used, capacity, first_free; /* used: highest index + 1; first_free: index + 1, 0 for none */
    uint32_t open;                       /* slots in use */
    uint32_t *ready;
    uint32_t ready_count;
    size_t held; /* by all slots, unread */
    char scratch[READ_BYTES];
} Reader;

static uint64_t token_of(uint32_t index, const Slot *s) { return ((uint64_t)s->generation << 20) | index; }

static Slot *slot_of(Reader *r, uint64_t token) {
    uint32_t index = (uint32_t)(token & (MOST_SLOTS - 1));
    if (index >= r->used) return NULL;
    Slot *s = &r->slots[index];
    return s->fd >= 0 && s->generation == (uint32_t)(token >> 20) ? s : NULL;
}

static size_t weight(const Slot *s) { return s->size + s->count * sizeof(Mark); }

static int64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
}

static void ring(Reader *r) {
    if (r->rung) return;
    r->rung = 1;
    uint64_t one = 1;
    (void)!write(r->bell, &one, sizeof one);
}

static void mark_ready(Reader *r, Slot *s) {
    if (!s->ready) {
        s->ready = 1;
        r->ready[r->ready_count++] = (uint32_t)(s - r->slots);
    }
    ring(r);
}

static int watch(Reader *r, Slot *s) {
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = token_of((uint32_t)(s - r->slots), s)};
    if (epoll_ctl(r->epoll, EPOLL_CTL_ADD, s->fd, &e) < 0) return -1;
    s->watched = 1;
    return 0;
}

static void unwatch(Reader *r, Slot *s) {
    if (s->watched) epoll_ctl(r->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    s->watched = 0;
}

static void end_slot(Reader *r, Slot *s, int over) {
    s->over = over;
    unwatch(r, s);
    mark_ready(r, s);
}

static int keep(Slot *s, const char *data, size_t n, Mark mark) {
    if (s->room - s->size < n) {
        size_t room = s->room ? s->room * 2 : FIRST_ROOM;
        while (room < s->size + n) room *= 2;
        char *grown = realloc(s->bytes, room);
        if (grown == NULL) return -1;
        s->bytes = grown;
        s->room = room;
    }
    if (s->count == s->rooms) {
        size_t rooms = s->rooms ? s->rooms * 2 : 32;
        Mark *grown = realloc(s->marks, rooms * sizeof(Mark));
        if (grown == NULL) return -1;
        s->marks = grown;
        s->rooms = rooms;
    }
    memcpy(s->bytes + s->size, data, n);
    s->size += n;
    mark.end = (int64_t)s->size;
    s->marks[s->count++] = mark;
    return 0;
}

/* Read a slot once, with the lock held; return whether there may be more. */
static int read_slot(Reader *r, Slot *s) {
    union {
        char room[CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr align;
    } control;
    struct iovec io = {r->scratch, READ_BYTES};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    ssize_t got = recvmsg(s->fd, &m, MSG_DONTWAIT);
    if (got < 0) {
        if (errno == EINTR) return 1;
        if (errno != EAGAIN && errno != EWOULDBLOCK) end_slot(r, s, -errno);
        return 0;
    }
    if (got == 0) {
        end_slot(r, s, 1);
        return 0;
    }
    Mark mark = {.program_ns = now_ns(CLOCK_MONOTONIC)};
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c != NULL; c = CMSG_NXTHDR(&m, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPNS && c->cmsg_len >= CMSG_LEN(sizeof(struct timespec))) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(c), sizeof t);
            mark.kernel_ns = (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
        }
    size_t before = weight(s);
    if (keep(s, r->scratch, (size_t)got, mark) < 0) {
        end_slot(r, s, -ENOMEM);
        return 0;
    }
    r->held += weight(s) - before;
    int full = weight(s) >= r->most_unread || r->held >= r->most_held;
    if (full) unwatch(r, s); /* until it is taken */
    if (s->framed) {
        size_t body;
        framing_feed(&s->framing, r->scratch, (size_t)got, NULL, &body);
    }
    if (full || !s->framed || s->framing.state >= DONE || weight(s) >= r->ring_at) mark_ready(r, s);
    return !full;
}

/* Be scheduled soon where other programs want the cores too. The thread needs little of them and often: a short slice
 * (Linux 6.12; nobody needs a right for it) puts it before those who compute, and so does a priority, where the process
 * may have one. */
static void hurry(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } slice = {.size = 48, .runtime = 100000};
    slice.nice = getpriority(PRIO_PROCESS, 0);
    (void)!syscall(SYS_sched_setattr, 0, &slice, 0);
    (void)!setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), -10);
}

static void *run(void *argument) {
    Reader *r = argument;
    struct epoll_event events[EVENTS];
    prctl(PR_SET_NAME, "llm-reader");
    hurry();
    while (!atomic_load(&r->stop)) {
        int n = epoll_wait(r->epoll, events, EVENTS, -1), busy = 0;
        for (int i = 0; i < n; i++) {
            pthread_mutex_lock(&r->lock);
            Slot *s = slot_of(r, events[i].data.u64);
            if (s != NULL && s->watched) read_slot(r, s);
            busy = r->open >= BUSY_SLOTS;
            pthread_mutex_unlock(&r->lock);
        }
        if (busy) nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return NULL;
}

/* ---- Python: Framing ------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    Framing framing;
    int64_t body_bytes;
} FramingObject;

static PyObject *framing_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    int kind;
    long long length = 0;
    if (kwargs != NULL && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Framing() takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "i|L", &kind, &length)) return NULL;
    if (kind < BY_LENGTH || kind > BY_END || length < 0) {
        PyErr_SetString(PyExc_ValueError, "no such framing");
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    FramingObject *self = (FramingObject *)alloc(type, 0);
    if (self == NULL) return NULL;
    framing_begin(&self->framing, (enum Kind)kind, length);
    return (PyObject *)self;
}

static void plain_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *framing_feed_method(FramingObject *self, PyObject *args) {
    Py_buffer data, marks;
    Py_ssize_t begin;
    PyObject *result = NULL, *body = NULL, *moved = NULL;
    if (!PyArg_ParseTuple(args, "y*ny*", &data, &begin, &marks)) return NULL;
    Py_ssize_t count = marks.len / (Py_ssize_t)sizeof(Mark), at = begin, out = 0;
    if (begin < 0 || begin > data.len || marks.len % (Py_ssize_t)sizeof(Mark)) {
        PyErr_SetString(PyExc_ValueError, "the reads are not those of these bytes");
        goto end;
    }
    char *room = malloc(data.len - begin + 1);
    moved = PyBytes_FromStringAndSize(marks.buf, marks.len);
    if (moved == NULL || room == NULL) {
        if (room == NULL) PyErr_NoMemory();
        free(room);
        goto end;
    }
    char *moved_bytes = PyBytes_AsString(moved);
    for (Py_ssize_t i = 0; i < count; i++) {
        Mark mark;
        memcpy(&mark, moved_bytes + i * (Py_ssize_t)sizeof mark, sizeof mark);
        Py_ssize_t end = mark.end > data.len ? data.len : (Py_ssize_t)mark.end;
        if (end > at && self->framing.state < DONE) {
            size_t part;
            at += (Py_ssize_t)framing_feed(&self->framing, (const char *)data.buf + at, (size_t)(end - at), room + out, &part);
            out += (Py_ssize_t)part;
        }
        mark.end = self->body_bytes + out;
        memcpy(moved_bytes + i * (Py_ssize_t)sizeof mark, &mark, sizeof mark);
    }
    body = PyBytes_FromStringAndSize(room, out);
    free(room);
    if (body == NULL) goto end;
    self->body_bytes += out;
    result = Py_BuildValue("OOn", body, moved, at);
end:
    Py_XDECREF(body);
    Py_XDECREF(moved);
    PyBuffer_Release(&data);
    PyBuffer_Release(&marks);
    return result;
}

static PyObject *framing_copied(FramingObject *self, PyObject *unused) {
    (void)unused;
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    FramingObject *copy = (FramingObject *)alloc(type, 0);
    if (copy == NULL) return NULL;
    copy->framing = self->framing;
    copy->body_bytes = self->body_bytes;
    return (PyObject *)copy;
}

static PyObject *framing_done(FramingObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(self->framing.state == DONE);
}

static PyObject *framing_error(FramingObject *self, void *unused) {
    (void)unused;
    if (self->framing.error == NULL) Py_RETURN_NONE;
    return PyUnicode_FromString(self->framing.error);
}

static PyMethodDef framing_methods[] = {
    {"feed", (PyCFunction)(void (*)(void))framing_feed_method, METH_VARARGS, NULL},
    {"copied", (PyCFunction)(void (*)(void))framing_copied, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef framing_attributes[] = {
    {"done", (getter)(void (*)(void))framing_done, NULL, NULL, NULL},
    {"error", (getter)(void (*)(void))framing_error, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot framing_slots[] = {
    {Py_tp_new, (void *)framing_new},
    {Py_tp_dealloc, (void *)plain_dealloc},
    {Py_tp_methods, framing_methods},
    {Py_tp_getset, framing_attributes},
    {Py_tp_doc, "Where a response ends, and its body; see llm_locust.client.http.reader."},
    {0, NULL},
};
static PyType_Spec framing_spec = {"llm_locust.client._reader.Framing", sizeof(FramingObject), 0, Py_TPFLAGS_DEFAULT, framing_slots};

/* ---- Python: Reader ------------------------------------------------------------------------------------------- */

static void shut(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Give everything back. There is no thread any more. */
static void release_all(Reader *r) {
    for (uint32_t i = 0; i < r->used; i++) {
        free(r->slots[i].bytes);
        free(r->slots[i].marks);
    }
    free(r->slots);
    free(r->ready);
    r->slots = NULL;
    r->ready = NULL;
    r->used = r->capacity = r->first_free = r->ready_count = 0;
    r->held = 0;
    shut(&r->epoll);
    shut(&r->bell);
    shut(&r->wake);
}

static void stop_thread(Reader *r) {
    if (!r->running) return;
    r->running = 0;
    atomic_store(&r->stop, 1);
    uint64_t one = 1;
    (void)!write(r->wake, &one, sizeof one);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(r->thread, NULL);
    Py_END_ALLOW_THREADS
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Py_ssize_t ring_at, most_unread, most_held;
    if (kwargs != NULL && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Reader() takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "nnn", &ring_at, &most_unread, &most_held)) return NULL;
    if (ring_at < 1 || most_unread < ring_at || most_held < most_unread) {
        PyErr_SetString(PyExc_ValueError, "the bounds contradict each other");
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Reader *r = (Reader *)alloc(type, 0);
    if (r == NULL) return NULL;
    r->ring_at = (size_t)ring_at;
    r->most_unread = (size_t)most_unread;
    r->most_held = (size_t)most_held;
    pthread_mutex_init(&r->lock, NULL);
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    r->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    /* The token of the wake is that of no slot. */
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    if (r->epoll < 0 || r->bell < 0 || r->wake < 0 || epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->wake, &e) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(r);
        return NULL;
    }
    /* Signals are for the interpreter's threads, which they wake. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&r->thread, NULL, run, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        errno = failed;
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(r);
        return NULL;
    }
    r->running = 1;
    return (PyObject *)r;
}

static void reader_dealloc(PyObject *self) {
    Reader *r = (Reader *)self;
    stop_thread(r);
    release_all(r);
    pthread_mutex_destroy(&r->lock);
    plain_dealloc(self);
}

static PyObject *reader_close(Reader *r, PyObject *unused) {
    (void)unused;
    stop_thread(r);
    release_all(r);
    Py_RETURN_NONE;
}

/* In a forked child there is no thread, and its lock may be held for ever. What the thread was changing when the process
 * forked is in no state to be freed: a pointer may be the one that realloc has just given back. It is left. */
static PyObject *reader_forget(Reader *r, PyObject *unused) {
    (void)unused;
    r->running = 0;
    if (pthread_mutex_trylock(&r->lock)) r->used = 0, r->slots = NULL, r->ready = NULL;
    pthread_mutex_init(&r->lock, NULL);
    release_all(r);
    Py_RETURN_NONE;
}

static int grow(Reader *r) {
    uint32_t capacity = r->capacity ? r->capacity * 2 : 64;
    if (capacity > MOST_SLOTS) return -1;
    Slot *slots = realloc(r->slots, capacity * sizeof(Slot));
    if (slots == NULL) return -1;
    r->slots = slots;
    uint32_t *ready = realloc(r->ready, capacity * sizeof(uint32_t));
    if (ready == NULL) return -1;
    r->ready = ready;
    memset(slots + r->capacity, 0, (capacity - r->capacity) * sizeof(Slot));
    r->capacity = capacity;
    return 0;
}

static PyObject *reader_add(Reader *r, PyObject *args) {
    int fd, failed = 0;
    uint64_t token = 0;
    if (!PyArg_ParseTuple(args, "i", &fd)) return NULL;
    if (fd < 0 || r->epoll < 0) {
        errno = EBADF;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    pthread_mutex_lock(&r->lock);
    if (r->first_free == 0 && r->used == r->capacity && grow(r) < 0) failed = ENOMEM;
    else {
        uint32_t index = r->first_free ? r->first_free - 1 : r->used++;
        Slot *s = &r->slots[index];
        if (r->first_free) r->first_free = s->next_free;
        *s = (Slot){.fd = fd, .generation = s->generation + 1, .ready = s->ready};
        token = token_of(index, s);
        r->open++;
        if (watch(r, s) < 0) {
            r->open--;
            failed = errno;
            s->fd = -1;
            s->next_free = r->first_free;
            r->first_free = index + 1;
        }
    }
    pthread_mutex_unlock(&r->lock);
    if (failed) {
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromUnsignedLongLong(token);
}

static PyObject *no_slot(void) {
    PyErr_SetString(PyExc_KeyError, "no such slot");
    return NULL;
}

static PyObject *reader_expect(Reader *r, PyObject *args) {
    unsigned long long token;
    PyObject *framing;
    if (!PyArg_ParseTuple(args, "KO", &token, &framing)) return NULL;
    PyTypeObject *type = *(PyTypeObject **)PyType_GetModuleState(Py_TYPE((PyObject *)r));
    if (framing != Py_None && !PyObject_TypeCheck(framing, type)) {
        PyErr_SetString(PyExc_TypeError, "a Framing or None");
        return NULL;
    }
    pthread_mutex_lock(&r->lock);
    Slot *s = slot_of(r, token);
    if (s != NULL) {
        int due = s->over != 0;
        s->framed = framing != Py_None;
        if (s->framed) {
            size_t body;
            s->framing = ((FramingObject *)framing)->framing;
            size_t taken = framing_feed(&s->framing, s->bytes, s->size, NULL, &body);
            due |= s->framing.state >= DONE || taken < s->size || weight(s) >= r->ring_at;
        } else due |= s->size > 0;
        if (due) mark_ready(r, s);
    }
    pthread_mutex_unlock(&r->lock);
    if (s == NULL) return no_slot();
    Py_RETURN_NONE;
}

static PyObject *reader_take(Reader *r, PyObject *args) {
    unsigned long long token;
    int drain;
    if (!PyArg_ParseTuple(args, "Kp", &token, &drain)) return NULL;
    pthread_mutex_lock(&r->lock);
    Slot *s = slot_of(r, token);
    if (s == NULL) {
        pthread_mutex_unlock(&r->lock);
        return no_slot();
    }
    if (drain && s->watched)
        while (read_slot(r, s)) {}
    char *bytes = s->bytes;
    Mark *marks = s->marks;
    size_t size = s->size, count = s->count;
    int over = s->over;
    r->held -= weight(s);
    s->bytes = NULL;
    s->marks = NULL;
    s->size = s->room = s->count = s->rooms = 0;
    if (!s->watched && !over && watch(r, s) < 0) over = s->over = -errno;
    pthread_mutex_unlock(&r->lock);
    PyObject *result = Py_BuildValue("y#y#i", bytes == NULL ? "" : bytes, (Py_ssize_t)size, marks == NULL ? "" : (char *)marks,
                                     (Py_ssize_t)(count * sizeof(Mark)), over);
    free(bytes);
    free(marks);
    return result;
}

static PyObject *reader_last_ns(Reader *r, PyObject *token_object) {
    unsigned long long token = PyLong_AsUnsignedLongLong(token_object);
    if (token == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    pthread_mutex_lock(&r->lock);
    Slot *s = slot_of(r, token);
    int64_t last_ns = s != NULL && s->count > 0 ? s->marks[s->count - 1].program_ns : 0;
    pthread_mutex_unlock(&r->lock);
    return s == NULL ? no_slot() : PyLong_FromLongLong(last_ns);
}

static PyObject *reader_drop(Reader *r, PyObject *args) {
    unsigned long long token;
    char *bytes = NULL;
    Mark *marks = NULL;
    if (!PyArg_ParseTuple(args, "K", &token)) return NULL;
    pthread_mutex_lock(&r->lock);
    Slot *s = slot_of(r, token);
    if (s != NULL) {
        unwatch(r, s);
        r->held -= weight(s);
        bytes = s->bytes;
        marks = s->marks;
        uint32_t index = (uint32_t)(s - r->slots);
        r->open--;
        /* It stays in the ready list if it is there: its flag goes with the list. */
        *s = (Slot){.fd = -1, .generation = s->generation, .ready = s->ready, .next_free = r->first_free};
        r->first_free = index + 1;
    }
    pthread_mutex_unlock(&r->lock);
    free(bytes);
    free(marks);
    Py_RETURN_NONE;
}

static PyObject *reader_ready(Reader *r, PyObject *unused) {
    (void)unused;
    uint64_t *tokens = NULL;
    uint32_t count = 0;
    if (r->bell < 0) return PyList_New(0);
    pthread_mutex_lock(&r->lock);
    uint64_t rung;
    (void)!read(r->bell, &rung, sizeof rung);
    r->rung = 0;
    if (r->ready_count > 0 && (tokens = malloc(r->ready_count * sizeof *tokens)) != NULL) {
        for (uint32_t i = 0; i < r->ready_count; i++) {
            Slot *s = &r->slots[r->ready[i]];
            s->ready = 0;
            if (s->fd >= 0) tokens[count++] = token_of(r->ready[i], s);
        }
        r->ready_count = 0;
    } else if (r->ready_count > 0) ring(r); /* no memory: later */
    pthread_mutex_unlock(&r->lock);
    PyObject *result = PyList_New(count);
    for (uint32_t i = 0; result != NULL && i < count; i++) {
        PyObject *token = PyLong_FromUnsignedLongLong(tokens[i]);
        if (token == NULL || PyList_SetItem(result, i, token) < 0) Py_CLEAR(result);
    }
    free(tokens);
    return result;
}

static PyObject *reader_bell(Reader *r, void *unused) {
    (void)unused;
    return PyLong_FromLong(r->bell);
}

#define METHOD(name, function, flags) {name, (PyCFunction)(void (*)(void))function, flags, NULL}
static PyMethodDef reader_methods[] = {
    METHOD("add", reader_add, METH_VARARGS),       METHOD("expect", reader_expect, METH_VARARGS),
    METHOD("take", reader_take, METH_VARARGS),     METHOD("drop", reader_drop, METH_VARARGS),
    METHOD("last_ns", reader_last_ns, METH_O),     METHOD("ready", reader_ready, METH_NOARGS),
    METHOD("close", reader_close, METH_NOARGS),    METHOD("forget", reader_forget, METH_NOARGS),
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef reader_attributes[] = {
    {"bell", (getter)(void (*)(void))reader_bell, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot reader_slots[] = {
    {Py_tp_new, (void *)reader_new},
    {Py_tp_dealloc, (void *)reader_dealloc},
    {Py_tp_methods, reader_methods},
    {Py_tp_getset, reader_attributes},
    {Py_tp_doc, "A thread that reads sockets; see llm_locust.client.http.reader."},
    {0, NULL},
};
static PyType_Spec reader_spec = {"llm_locust.client._reader.Reader", sizeof(Reader), 0, Py_TPFLAGS_DEFAULT, reader_slots};

/* ---- the module ----------------------------------------------------------------------------------------------- */

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyObject **kept) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type == NULL || PyModule_AddObjectRef(module, name, type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    *kept = type;
    return 0;
}

static int module_exec(PyObject *module) {
    PyObject **framing = PyModule_GetState(module), *reader;
    if (add_type(module, &framing_spec, "Framing", framing) < 0 || add_type(module, &reader_spec, "Reader", &reader) < 0) return -1;
    Py_DECREF(reader);
    return 0;
}

static int module_clear(PyObject *module) {
    PyObject **framing = PyModule_GetState(module);
    Py_CLEAR(*framing);
    return 0;
}

static void module_free(void *module) { module_clear(module); }

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)module_exec}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_reader", .m_size = sizeof(PyObject *), .m_slots = module_slots, .m_clear = module_clear, .m_free = module_free};

PyMODINIT_FUNC PyInit__reader(void) { return PyModuleDef_Init(&definition); }
