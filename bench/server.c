/* A server of known times: the truth that clients are measured against.
 *
 * Any POST is answered 200 with a chunked text/event-stream: the headers at once, the first token
 * TTFT after the last byte of the request arrived (the kernel's receive stamp, so a busy server
 * does not move the truth), token k at TTFT + k * GAP. One token is one write is one HTTP chunk.
 * The role delta shares the write of the first token; the last token carries the finish reason;
 * usage, [DONE] and the end chunk follow it in a write each, as most servers do it.
 *
 * GET /truth tells how late the writes were; DELETE /truth tells and then forgets; SIGTERM prints it.
 * With --log FILE every request and every write is logged, and the file is written at the end.
 * With --fifo N it has the real-time priority N, so that no other process comes between a write's
 * time and the write.
 *
 * Both waits (TTFT and GAP) are constants, so two queues in order of due time replace a heap.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { REQUEST_MAX = 1 << 14, EVENTS_MAX = 256, WRITES_PER_TURN = 64, LATENESS_MAX_US = 1 << 20 };
enum { QUEUE_NONE = -1, QUEUE_FIRST, QUEUE_NEXT, QUEUES };

typedef struct Connection {
    struct Connection *previous, *next; /* in the queue, by due time */
    int64_t due_ns;                     /* monotonic clock */
    uint64_t request;
    int fd, queue, token, port; /* the client's port */
    size_t head_length, body_left; /* body_left: bytes of the request's body still to come */
    int in_body;
    char head[REQUEST_MAX];
} Connection;

typedef struct {
    Connection *first, *last;
} Queue;

/* Counts by whole microseconds of lateness, the last bucket for everything above. */
typedef struct {
    uint64_t n, max_us;
    uint32_t count[LATENESS_MAX_US];
} Histogram;

typedef struct {
    char bytes[2048];
    size_t length, id_at[2];
    int ids;
} Message;

/* What happened at a monotonic time: a request's last byte arrived (token is ARRIVED), or a token was
 * written, by a call that took so long. */
enum { ARRIVED = 0xffff };
typedef struct {
    int64_t at_ns;
    uint32_t took_ns;
    uint16_t port, token;
} Entry;

static struct {
    int port, tokens, fifo;
    int64_t ttft_ns, gap_ns;
    const char *log;
} options = {0, 100, 0, 50000000, 20000000, 0};
static struct {
    Entry *entries;
    size_t n, room;
} happened;
static struct {
    uint64_t requests, completed, tokens, broken, streams;
    Histogram first, all;
} truth;
static Queue queues[QUEUES];
static Message first_message, token_message, last_message, only_message, usage_message, done_message,
    end_message;
static uint64_t next_request;
static int poller;
static volatile sig_atomic_t stopping;

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* ---- what is sent ---- */

#define ID_DIGITS 16
#define CHUNK_HEAD                                                                                    \
    "data: {\"id\":\"chatcmpl-0000000000000000\",\"object\":\"chat.completion.chunk\","               \
    "\"created\":1700000000,\"model\":\"known\",\"choices\":["
#define CHOICE(delta, finish)                                                                         \
    CHUNK_HEAD "{\"index\":0,\"delta\":{" delta "},\"logprobs\":null,\"finish_reason\":" finish       \
               ",\"token_ids\":null}]}\n\n"

/* Appends one HTTP chunk and remembers where its completion id has its digits. */
static void add_chunk(Message *m, const char *event) {
    m->length += (size_t)sprintf(m->bytes + m->length, "%zx\r\n", strlen(event));
    const char *id = strstr(event, "chatcmpl-");
    if (id) m->id_at[m->ids++] = m->length + (size_t)(id - event) + strlen("chatcmpl-");
    m->length += (size_t)sprintf(m->bytes + m->length, "%s\r\n", event);
}

static void prepare_messages(void) {
    const char *role = CHOICE("\"role\":\"assistant\",\"content\":\"\"", "null");
    const char *last = CHOICE("\"content\":\" token\"", "\"length\"");
    char usage[512];
    snprintf(usage, sizeof usage,
             CHUNK_HEAD "],\"usage\":{\"prompt_tokens\":64,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n",
             64 + options.tokens, options.tokens);
    add_chunk(&token_message, CHOICE("\"content\":\" token\"", "null"));
    add_chunk(&first_message, role);
    add_chunk(&first_message, CHOICE("\"content\":\" token\"", "null"));
    add_chunk(&last_message, last);
    add_chunk(&only_message, role);
    add_chunk(&only_message, last);
    add_chunk(&usage_message, usage);
    add_chunk(&done_message, "data: [DONE]\n\n");
    end_message.length = (size_t)sprintf(end_message.bytes, "0\r\n\r\n");
}

static int send_all(int fd, const char *bytes, size_t length) {
    return send(fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length;
}

static int send_message(const Connection *c, Message *m) {
    char digits[ID_DIGITS + 1];
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)c->request);
    for (int i = 0; i < m->ids; i++) memcpy(m->bytes + m->id_at[i], digits, ID_DIGITS);
    return send_all(c->fd, m->bytes, m->length);
}

static int send_answer(int fd, const char *status, const char *body) {
    char answer[1024];
    int n = snprintf(answer, sizeof answer,
                     "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", status,
                     strlen(body), body);
    return send_all(fd, answer, (size_t)n);
}

/* ---- how late it was ---- */

static void histogram_add(Histogram *h, int64_t late_ns) {
    uint64_t us = late_ns > 0 ? (uint64_t)late_ns / 1000 : 0;
    if (us > h->max_us) h->max_us = us;
    h->n++;
    h->count[us < LATENESS_MAX_US ? us : LATENESS_MAX_US - 1]++;
}

static uint64_t histogram_quantile(const Histogram *h, double q) {
    uint64_t rank = (uint64_t)(q * (double)(h->n - 1)), seen = 0;
    for (uint64_t us = 0; us < LATENESS_MAX_US - 1; us++)
        if ((seen += h->count[us]) > rank) return us;
    return h->max_us;
}

static int histogram_json(const Histogram *h, char *out, size_t size) {
    if (!h->n) return snprintf(out, size, "{\"n\":0,\"p50\":null,\"p99\":null,\"max\":null}");
    return snprintf(out, size, "{\"n\":%llu,\"p50\":%llu,\"p99\":%llu,\"max\":%llu}", (unsigned long long)h->n,
                    (unsigned long long)histogram_quantile(h, 0.5),
                    (unsigned long long)histogram_quantile(h, 0.99), (unsigned long long)h->max_us);
}

static void truth_json(char *out, size_t size) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                   (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    char first[128], all[128];
    histogram_json(&truth.first, first, sizeof first);
    histogram_json(&truth.all, all, sizeof all);
    snprintf(out, size,
             "{\"now_ns\":%lld,\"cpu_s\":%.6f,\"ttft_ms\":%g,\"gap_ms\":%g,\"streams\":%llu,\"requests\":%llu,"
             "\"completed\":%llu,\"broken\":%llu,\"tokens\":%llu,\"first_lateness_us\":%s,\"lateness_us\":%s}",
             (long long)clock_ns(CLOCK_REALTIME), cpu_s, (double)options.ttft_ns * 1e-6,
             (double)options.gap_ns * 1e-6, (unsigned long long)truth.streams,
             (unsigned long long)truth.requests, (unsigned long long)truth.completed,
             (unsigned long long)truth.broken, (unsigned long long)truth.tokens, first, all);
}

/* Makes room by doubling: a page is touched first when it is written to. */
static void note(const Connection *c, int token, int64_t at_ns, int64_t took_ns) {
    if (!options.log) return;
    if (happened.n == happened.room) {
        happened.room = happened.room ? 2 * happened.room : 1 << 20;
        happened.entries = realloc(happened.entries, happened.room * sizeof(Entry));
        if (!happened.entries) die("realloc");
    }
    Entry entry = {at_ns, took_ns < UINT32_MAX ? (uint32_t)took_ns : UINT32_MAX, (uint16_t)c->port, (uint16_t)token};
    happened.entries[happened.n++] = entry;
}

/* First what is to be added to the times for realtime, then the entries. */
static void write_log(void) {
    int64_t to_realtime_ns = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
    FILE *file = fopen(options.log, "wb");
    if (!file) die(options.log);
    if (fwrite(&to_realtime_ns, sizeof to_realtime_ns, 1, file) != 1 ||
        fwrite(happened.entries, sizeof(Entry), happened.n, file) != happened.n || fclose(file))
        die(options.log);
}

static void truth_forget(void) {
    uint64_t streams = truth.streams;
    memset(&truth, 0, sizeof truth);
    truth.streams = streams;
}

/* ---- when it is sent ---- */

/* From the back: what is due after everything queued, the common case, costs one comparison. */
static void enqueue(Connection *c, int queue, int64_t due_ns) {
    Queue *q = &queues[queue];
    Connection *before = q->last;
    while (before && before->due_ns > due_ns) before = before->previous;
    c->due_ns = due_ns;
    c->queue = queue;
    c->previous = before;
    c->next = before ? before->next : q->first;
    *(c->previous ? &c->previous->next : &q->first) = c;
    *(c->next ? &c->next->previous : &q->last) = c;
}

static void dequeue(Connection *c) {
    Queue *q = &queues[c->queue];
    *(c->previous ? &c->previous->next : &q->first) = c->next;
    *(c->next ? &c->next->previous : &q->last) = c->previous;
    c->queue = QUEUE_NONE;
}

static Connection *next_due(void) {
    Connection *a = queues[QUEUE_FIRST].first, *b = queues[QUEUE_NEXT].first;
    if (!a || !b) return a ? a : b;
    return a->due_ns <= b->due_ns ? a : b;
}

static void close_connection(Connection *c) {
    if (c->queue != QUEUE_NONE) {
        dequeue(c);
        truth.streams--;
        truth.broken++;
    }
    close(c->fd);
    free(c);
}

static int next_request_of(Connection *c, int64_t arrived_ns);

/* Writes the token that is due. Returns 0 where the connection is of no more use. */
static int write_token(Connection *c) {
    int first = c->token == 0, last = c->token == options.tokens - 1;
    Message *m = first ? (last ? &only_message : &first_message) : last ? &last_message : &token_message;
    int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    if (!send_message(c, m)) return 0;
    note(c, c->token, now_ns, options.log ? clock_ns(CLOCK_MONOTONIC) - now_ns : 0);
    histogram_add(&truth.all, now_ns - c->due_ns);
    if (first) histogram_add(&truth.first, now_ns - c->due_ns);
    truth.tokens++;
    c->token++;
    dequeue(c);
    if (!last) {
        enqueue(c, QUEUE_NEXT, c->due_ns + options.gap_ns);
        return 1;
    }
    truth.completed++;
    truth.streams--;
    return send_message(c, &usage_message) && send_message(c, &done_message) &&
           send_message(c, &end_message) && next_request_of(c, now_ns);
}

/* At most WRITES_PER_TURN, so that reads are not starved by a backlog of writes. */
static void write_due(void) {
    int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < WRITES_PER_TURN; i++) {
        Connection *c = next_due();
        if (!c || c->due_ns > now_ns) return;
        if (!write_token(c)) close_connection(c);
    }
}

/* ---- what is asked ---- */

static int start_stream(Connection *c, int64_t arrived_ns) {
    static const char headers[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                                  "Transfer-Encoding: chunked\r\n\r\n";
    c->request = next_request++;
    c->token = 0;
    truth.requests++;
    truth.streams++;
    note(c, ARRIVED, arrived_ns, 0);
    enqueue(c, QUEUE_FIRST, arrived_ns + options.ttft_ns);
    return send_all(c->fd, headers, sizeof headers - 1);
}

static int answer(Connection *c, const char *head, int64_t arrived_ns) {
    char json[1024];
    if (!strncmp(head, "POST ", 5)) return start_stream(c, arrived_ns);
    if (!strncmp(head, "GET /truth ", 11) || !strncmp(head, "DELETE /truth ", 14)) {
        truth_json(json, sizeof json);
        if (*head == 'D') truth_forget();
        return send_answer(c->fd, "200 OK", json);
    }
    if (!strncmp(head, "GET /health ", 12)) return send_answer(c->fd, "200 OK", "{}");
    if (!strncmp(head, "GET /v1/models ", 15))
        return send_answer(c->fd, "200 OK",
                           "{\"object\":\"list\",\"data\":[{\"id\":\"known\",\"object\":\"model\"}]}");
    return send_answer(c->fd, "404 Not Found", "{\"error\":{\"message\":\"no such page\"}}");
}

/* Answers the requests that the buffer holds whole; what follows them stays. */
static int next_request_of(Connection *c, int64_t arrived_ns) {
    if (c->queue != QUEUE_NONE) return 1; /* one answer at a time */
    char *end = memmem(c->head, c->head_length, "\r\n\r\n", 4);
    if (!end) return c->head_length < REQUEST_MAX;
    if (!c->in_body) {
        *end = 0;
        const char *length = strcasestr(c->head, "\r\ncontent-length:");
        c->body_left = length ? strtoul(length + 17, 0, 10) : 0;
        *end = '\r';
        c->in_body = 1;
    }
    size_t used = (size_t)(end + 4 - c->head), body = c->head_length - used;
    if (body > c->body_left) body = c->body_left;
    c->body_left -= body;
    memmove(end + 4, end + 4 + body, c->head_length - used - body);
    c->head_length -= body;
    if (c->body_left) return c->head_length < REQUEST_MAX;
    char line[64];
    snprintf(line, sizeof line, "%.*s", (int)used, c->head);
    memmove(c->head, c->head + used, c->head_length -= used);
    c->in_body = 0;
    return answer(c, line, arrived_ns) && next_request_of(c, arrived_ns);
}

/* The kernel's receive stamp moved to the monotonic clock. */
static int64_t arrival_ns(struct msghdr *message) {
    int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    for (struct cmsghdr *m = CMSG_FIRSTHDR(message); m; m = CMSG_NXTHDR(message, m))
        if (m->cmsg_level == SOL_SOCKET && m->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec stamp;
            memcpy(&stamp, CMSG_DATA(m), sizeof stamp);
            int64_t stamp_ns = stamp.tv_sec * INT64_C(1000000000) + stamp.tv_nsec;
            return now_ns - (clock_ns(CLOCK_REALTIME) - stamp_ns);
        }
    return now_ns;
}

static int read_request(Connection *c) {
    char control[128];
    struct iovec bytes = {c->head + c->head_length, REQUEST_MAX - c->head_length};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    ssize_t n = recvmsg(c->fd, &message, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return 0;
    c->head_length += (size_t)n;
    return next_request_of(c, arrival_ns(&message));
}

static void watch(int fd, void *what) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
}

static void accept_all(int listener) {
    struct sockaddr_in peer;
    socklen_t size = sizeof peer;
    for (int fd, on = 1;
         (fd = accept4(listener, (struct sockaddr *)&peer, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        Connection *c = calloc(1, sizeof *c);
        if (!c) die("calloc");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
        c->fd = fd;
        c->port = ntohs(peer.sin_port);
        c->queue = QUEUE_NONE;
        watch(fd, c);
    }
}

/* ---- the process ---- */

static void stop(int signal) {
    (void)signal;
    stopping = 1;
}

static int listen_on_loopback(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)options.port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 4096)) die("bind");
    if (getsockname(fd, (struct sockaddr *)&address, &size)) die("getsockname");
    printf("{\"port\":%d}\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void parse_options(int argc, char **argv) {
    static const struct option known[] = {{"port", 1, 0, 'p'}, {"ttft-ms", 1, 0, 't'}, {"gap-ms", 1, 0, 'g'},
                                          {"tokens", 1, 0, 'n'}, {"log", 1, 0, 'l'},
                                          {"fifo", 1, 0, 'f'}, {0, 0, 0, 0}};
    for (int o; (o = getopt_long(argc, argv, "", known, 0)) != -1;) {
        if (o == 'p') options.port = atoi(optarg);
        else if (o == 'l') options.log = optarg;
        else if (o == 'f') options.fifo = atoi(optarg);
        else if (o == 't') options.ttft_ns = (int64_t)(atof(optarg) * 1e6);
        else if (o == 'g') options.gap_ns = (int64_t)(atof(optarg) * 1e6);
        else if (o == 'n') options.tokens = atoi(optarg);
        else exit(2);
    }
    if (options.port < 0 || options.port > 65535 || options.ttft_ns < 0 || options.gap_ns < 0 ||
        options.tokens < 1 || options.tokens >= ARRIVED || options.fifo < 0 || options.fifo > 99) {
        fprintf(stderr, "%s: --port 0-65535, --ttft-ms and --gap-ms at least 0, --tokens 1-65534, --fifo 1-99\n",
                argv[0]);
        exit(2);
    }
}

static void turn(int listener) {
    struct epoll_event events[EVENTS_MAX];
    const Connection *soonest = next_due();
    int64_t wait_ns = soonest ? soonest->due_ns - clock_ns(CLOCK_MONOTONIC) : 0;
    if (wait_ns < 0) wait_ns = 0;
    struct timespec wait = {wait_ns / 1000000000, wait_ns % 1000000000};
    long n = syscall(SYS_epoll_pwait2, poller, events, EVENTS_MAX, soonest ? &wait : 0, 0, 0);
    if (n < 0 && errno != EINTR) die("epoll_pwait2");
    for (long i = 0; i < n; i++) {
        Connection *c = events[i].data.ptr;
        if (!c) accept_all(listener);
        else if (!read_request(c)) close_connection(c);
    }
    write_due();
}

int main(int argc, char **argv) {
    char json[1024];
    parse_options(argc, argv);
    prctl(PR_SET_TIMERSLACK, 1UL); /* the default rounds a sleep up by 50 us */
    struct sigaction on_stop = {.sa_handler = stop};
    struct sched_param priority = {.sched_priority = options.fifo};
    if (options.fifo && sched_setscheduler(0, SCHED_FIFO, &priority)) die("--fifo");
    sigaction(SIGTERM, &on_stop, 0);
    sigaction(SIGINT, &on_stop, 0);
    prepare_messages();
    poller = epoll_create1(EPOLL_CLOEXEC);
    int listener = listen_on_loopback();
    watch(listener, 0);
    while (!stopping) turn(listener);
    truth_json(json, sizeof json);
    puts(json);
    if (options.log) write_log();
    return 0;
}
