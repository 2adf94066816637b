/* The floor: what a client cannot do without. Keeps STREAMS answers of a server coming for SECONDS
 * after WARMUP, by epoll and recvmsg with the kernel's receive stamps, and parses nothing: a token is
 * one occurrence of `"content":" `, the end of an answer is its last five bytes.
 *
 * Prints {"window":"open"} when the warm-up is over, and one line of JSON when the time is.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_MAX = 1 << 16, EVENTS_MAX = 256, SAMPLES_MAX = 1 << 20 };

typedef struct {
    int fd, tokens;
    int64_t sent_ns, first_ns;
} Stream;

typedef struct {
    size_t n;
    float ms[SAMPLES_MAX];
} Samples;

static int port, streams = 400;
static double seconds = 10, warmup = 3;
static int in_window;
static uint64_t tokens, reads;
static Samples ttft, tpot;

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void add(Samples *s, double ms) {
    if (s->n < SAMPLES_MAX) s->ms[s->n++] = (float)ms;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void print_samples(const char *name, Samples *s) {
    qsort(s->ms, s->n, sizeof *s->ms, by_value);
    if (!s->n) printf("\"%s\":{\"n\":0,\"p50\":null,\"p99\":null}", name);
    else
        printf("\"%s\":{\"n\":%zu,\"p50\":%.4f,\"p99\":%.4f}", name, s->n, (double)s->ms[s->n / 2],
               (double)s->ms[(size_t)(0.99 * (double)(s->n - 1))]);
}

#define BODY                                                                                          \
    "{\"model\":\"known\",\"stream\":true,\"max_tokens\":100,"                                        \
    "\"messages\":[{\"role\":\"user\",\"content\":\"How much is it?\"}]}"

static void send_request(Stream *s) {
    static char request[512];
    static int length;
    if (!length)
        length = snprintf(request, sizeof request,
                          "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                          "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n" BODY,
                          sizeof BODY - 1);
    s->tokens = 0;
    s->sent_ns = clock_ns(CLOCK_REALTIME);
    if (send(s->fd, request, (size_t)length, MSG_NOSIGNAL) != length) die("send");
}

static Stream *open_streams(int poller) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    Stream *all = calloc((size_t)streams, sizeof *all);
    if (!all) die("calloc");
    for (int i = 0, on = 1; i < streams; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        all[i].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(all[i].fd, (struct sockaddr *)&address, sizeof address)) die("connect");
        setsockopt(all[i].fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(all[i].fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
        if (epoll_ctl(poller, EPOLL_CTL_ADD, all[i].fd, &event)) die("epoll_ctl");
    }
    return all;
}

static int64_t stamp_ns(struct msghdr *message) {
    for (struct cmsghdr *m = CMSG_FIRSTHDR(message); m; m = CMSG_NXTHDR(message, m))
        if (m->cmsg_level == SOL_SOCKET && m->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec stamp;
            memcpy(&stamp, CMSG_DATA(m), sizeof stamp);
            return stamp.tv_sec * INT64_C(1000000000) + stamp.tv_nsec;
        }
    return clock_ns(CLOCK_REALTIME);
}

static int count_tokens(const char *bytes, size_t n) {
    static const char token[] = "\"content\":\" ";
    int found = 0;
    for (const char *end = bytes + n; (bytes = memmem(bytes, (size_t)(end - bytes), token, sizeof token - 1)); found++)
        bytes += sizeof token - 1;
    return found;
}

/* Counts what came; a complete answer is followed by the next request. */
static void on_readable(Stream *s) {
    static char bytes[READ_MAX];
    char control[128];
    struct iovec space = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &space, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    ssize_t n = recvmsg(s->fd, &message, MSG_DONTWAIT);
    if (n <= 0) die("the server closed a connection");
    int64_t now_ns = stamp_ns(&message);
    int found = count_tokens(bytes, (size_t)n);
    if (found && !s->tokens) s->first_ns = now_ns;
    s->tokens += found;
    if (in_window) tokens += (uint64_t)found, reads++;
    if (in_window && found && s->tokens == found) add(&ttft, (double)(now_ns - s->sent_ns) * 1e-6);
    if (n < 5 || memcmp(bytes + n - 5, "0\r\n\r\n", 5)) return;
    if (in_window && s->tokens > 1) add(&tpot, (double)(now_ns - s->first_ns) * 1e-6 / (s->tokens - 1));
    send_request(s);
}

static void read_until(int poller, int64_t end_ns) {
    struct epoll_event events[EVENTS_MAX];
    while (clock_ns(CLOCK_MONOTONIC) < end_ns) {
        int n = epoll_wait(poller, events, EVENTS_MAX, 1);
        for (int i = 0; i < n; i++) on_readable(events[i].data.ptr);
    }
}

/* Over the warm-up, so that the streams' tokens do not come in bursts. */
static void start_evenly(int poller, Stream *all) {
    int64_t start_ns = clock_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < streams; i++) {
        read_until(poller, start_ns + (int64_t)(warmup * 1e9 * i / streams));
        send_request(&all[i]);
    }
    read_until(poller, start_ns + (int64_t)(warmup * 1e9));
}

static void parse_options(int argc, char **argv) {
    static const struct option known[] = {{"port", 1, 0, 'p'}, {"streams", 1, 0, 's'}, {"seconds", 1, 0, 't'},
                                          {"warmup", 1, 0, 'w'}, {0, 0, 0, 0}};
    for (int o; (o = getopt_long(argc, argv, "", known, 0)) != -1;) {
        if (o == 'p') port = atoi(optarg);
        else if (o == 's') streams = atoi(optarg);
        else if (o == 't') seconds = atof(optarg);
        else if (o == 'w') warmup = atof(optarg);
        else exit(2);
    }
    if (port < 1 || streams < 1 || seconds <= 0 || warmup < 0) {
        fprintf(stderr, "%s: --port is needed; --streams, --seconds above 0\n", argv[0]);
        exit(2);
    }
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    int poller = epoll_create1(EPOLL_CLOEXEC);
    Stream *all = open_streams(poller);
    start_evenly(poller, all);
    puts("{\"window\":\"open\"}");
    fflush(stdout);
    in_window = 1;
    double cpu = cpu_s();
    int64_t start_ns = clock_ns(CLOCK_MONOTONIC);
    read_until(poller, start_ns + (int64_t)(seconds * 1e9));
    double elapsed = (double)(clock_ns(CLOCK_MONOTONIC) - start_ns) * 1e-9;
    cpu = cpu_s() - cpu;
    printf("{\"seconds\":%.3f,\"tokens\":%llu,\"tokens_per_s\":%.1f,\"cpu_us_per_token\":%.3f,\"cpu_percent\":%.1f,"
           "\"tokens_per_read\":%.3f,",
           elapsed, (unsigned long long)tokens, (double)tokens / elapsed, cpu * 1e6 / (double)tokens,
           100 * cpu / elapsed, (double)tokens / (double)reads);
    print_samples("ttft_ms", &ttft);
    putchar(',');
    print_samples("tpot_ms", &tpot);
    puts("}");
    return 0;
}
