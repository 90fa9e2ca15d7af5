/*
 * proxy.c
 *	  The network between the nodes of a chaos run: each node is reached by the others through a port of this program, which can hold, drop, delay and throttle
 *	  the connections from one node to another.
 *
 * Who connects is read from the startup packet: nodes introduce themselves as application_name "tessera <node>". A connection that has not said so yet, or
 * never does (the first ones of a node that joins), counts as from "?".
 *
 * Lines of input, each answered by one line:
 *
 *	  listen <node> <port>          port <number>: where connections to the node that listens on that port are taken
 *	  target <node> <port>          ok: the node is now the server on that port; connections that are open stay
 *	  link <from> <to> <fault>      ok: from, to: a node, or * for any; fault: ok, hold (nothing passes, nothing is closed), drop (closed, and refused),
 *	                                slow <milliseconds each way>, throttle <bytes per second each way>; it replaces the last one of the same from and to
 *
 * One process, one poll loop. End of input ends it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NODES 32
#define RULES 256
#define PAIRS 1024
#define NAME 64
#define CHUNK 16384
#define QUEUED 262144			/* bytes of one direction; more is not read */
#define PROTOCOL_3 196608
#define SHORT_REQUEST 8			/* bytes of SSLRequest and GSSENCRequest */

typedef enum Fault
{
	FAULT_OK,
	FAULT_HOLD,
	FAULT_DROP,
	FAULT_SLOW,
	FAULT_THROTTLE
} Fault;

static const char *const fault_names[] = {"ok", "hold", "drop", "slow", "throttle"};

typedef struct Node
{
	char		name[NAME];
	int			listener;
	int			port;			/* of the server */
} Node;

typedef struct Rule
{
	char		from[NAME];
	char		to[NAME];
	Fault		fault;
	double		amount;
} Rule;

typedef struct Chunk
{
	struct Chunk *next;
	double		due;
	size_t		size;
	size_t		sent;
	char		data[CHUNK];
} Chunk;

/* What was read from one socket and is to be written to the other. */
typedef struct Direction
{
	Chunk	   *first;
	Chunk	   *last;
	size_t		queued;
	double		not_before;		/* throttle */
	int			ended;			/* the source has closed */
	int			shut;			/* and the sink was told */
} Direction;

typedef struct Pair
{
	int			used;
	int			known;			/* the startup packet was seen */
	char		from[NAME];
	Node	   *to;
	int			fd[2];			/* the client's, the server's */
	Direction	way[2];			/* way[i]: read from fd[i] */
} Pair;

static Node nodes[NODES];
static int	nnodes;
static Rule rules[RULES];
static int	nrules;
static Pair pairs[PAIRS];
static char input[65536];
static size_t input_size;

static double
now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void
make_nonblocking(int fd)
{
	int			on = 1;

	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static struct sockaddr_in
loopback(int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

/* The rule that names the link most closely: both ends, the one it comes from, the one it goes to, any. */
static const Rule *
rule_of(const Pair *pair)
{
	static const Rule none = {.fault = FAULT_OK};
	const Rule *best = &none;
	int			best_rank = -1;

	for (int i = 0; i < nrules; i++)
	{
		int			from = strcmp(rules[i].from, pair->from) == 0;
		int			to = strcmp(rules[i].to, pair->to->name) == 0;
		int			rank = from * 2 + to;

		if ((from || strcmp(rules[i].from, "*") == 0) && (to || strcmp(rules[i].to, "*") == 0) && rank > best_rank)
		{
			best = &rules[i];
			best_rank = rank;
		}
	}
	return best;
}


/* Pairs */

static void
forget_chunks(Direction *way)
{
	while (way->first != NULL)
	{
		Chunk	   *chunk = way->first;

		way->first = chunk->next;
		free(chunk);
	}
	memset(way, 0, sizeof(Direction));
}

static void
close_pair(Pair *pair, int reset)
{
	struct linger linger = {.l_onoff = 1, .l_linger = 0};

	for (int i = 0; i < 2; i++)
	{
		if (reset)
			setsockopt(pair->fd[i], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
		close(pair->fd[i]);
		forget_chunks(&pair->way[i]);
	}
	pair->used = 0;
}

static void
accept_pair(Node *node)
{
	int			client = accept(node->listener, NULL, NULL);
	struct sockaddr_in address = loopback(node->port);
	Pair	   *pair = NULL;
	int			server;

	if (client < 0)
		return;
	for (int i = 0; i < PAIRS && pair == NULL; i++)
		if (!pairs[i].used)
			pair = &pairs[i];
	server = socket(AF_INET, SOCK_STREAM, 0);
	make_nonblocking(client);
	make_nonblocking(server);
	if (pair == NULL || (connect(server, (struct sockaddr *) &address, sizeof(address)) != 0 && errno != EINPROGRESS))
	{
		close(client);
		close(server);
		return;
	}
	memset(pair, 0, sizeof(Pair));
	pair->used = 1;
	pair->to = node;
	pair->fd[0] = client;
	pair->fd[1] = server;
	strcpy(pair->from, "?");
}

static unsigned
read_int(const char *data)
{
	unsigned	value;

	memcpy(&value, data, sizeof(value));
	return ntohl(value);
}

/* Looks for application_name in a startup packet: pairs of names and values, each ended by a zero byte. */
static void
read_startup(Pair *pair, const char *data, size_t size)
{
	const char *end = data + size;

	if (size <= SHORT_REQUEST || read_int(data + 4) != PROTOCOL_3)
		return;
	pair->known = 1;
	for (const char *name = data + SHORT_REQUEST; name < end && *name;)
	{
		const char *value = name + strnlen(name, end - name) + 1;

		if (value >= end)
			return;
		if (strcmp(name, "application_name") == 0 && strncmp(value, "tessera ", 8) == 0)
			snprintf(pair->from, NAME, "%s", value + 8);
		name = value + strnlen(value, end - value) + 1;
	}
}

/* Reads once; false: the pair is broken. */
static int
read_way(Pair *pair, int side, const Rule *rule)
{
	Direction  *way = &pair->way[side];
	Chunk	   *chunk = malloc(sizeof(Chunk));
	ssize_t		n = recv(pair->fd[side], chunk->data, CHUNK, 0);

	if (n <= 0)
	{
		free(chunk);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR;
		way->ended = 1;
		return 1;
	}
	if (side == 0 && !pair->known)
		read_startup(pair, chunk->data, n);
	chunk->next = NULL;
	chunk->size = n;
	chunk->sent = 0;
	chunk->due = now_s() + (rule->fault == FAULT_SLOW ? rule->amount / 1000 : 0);
	if (way->last != NULL && way->first != NULL)
		way->last->next = chunk;
	else
		way->first = chunk;
	way->last = chunk;
	way->queued += n;
	return 1;
}

/* Writes what is due; false: the pair is broken. */
static int
write_way(Pair *pair, int side, const Rule *rule)
{
	Direction  *way = &pair->way[side];
	int			sink = pair->fd[1 - side];
	double		now = now_s();

	while (way->first != NULL && way->first->due <= now && way->not_before <= now)
	{
		Chunk	   *chunk = way->first;
		size_t		most = chunk->size - chunk->sent;
		ssize_t		n;

		if (rule->fault == FAULT_THROTTLE && most > 1024)
			most = 1024;
		n = send(sink, chunk->data + chunk->sent, most, MSG_NOSIGNAL);
		if (n < 0)
			return errno == EAGAIN || errno == EINTR || errno == ENOTCONN;
		chunk->sent += n;
		way->queued -= n;
		if (rule->fault == FAULT_THROTTLE)
			way->not_before = now + n / rule->amount;
		if (chunk->sent == chunk->size)
		{
			way->first = chunk->next;
			free(chunk);
		}
	}
	if (way->ended && way->first == NULL && !way->shut)
	{
		shutdown(sink, SHUT_WR);
		way->shut = 1;
	}
	return 1;
}

/* When something queued becomes due without any event of a socket; -1: never. */
static double
next_due(const Pair *pair)
{
	double		due = -1;

	for (int side = 0; side < 2; side++)
	{
		const Direction *way = &pair->way[side];
		double		at;

		if (way->first == NULL)
			continue;
		at = way->first->due > way->not_before ? way->first->due : way->not_before;
		if (due < 0 || at < due)
			due = at;
	}
	return due;
}


/* Commands */

static Node *
find_node(const char *name)
{
	for (int i = 0; i < nnodes; i++)
		if (strcmp(nodes[i].name, name) == 0)
			return &nodes[i];
	return NULL;
}

static void
do_listen(const char *name, int port)
{
	Node	   *node = find_node(name);
	struct sockaddr_in address = loopback(0);
	socklen_t	size = sizeof(address);

	if (node == NULL && nnodes < NODES)
	{
		node = &nodes[nnodes++];
		snprintf(node->name, NAME, "%s", name);
		node->listener = socket(AF_INET, SOCK_STREAM, 0);
		make_nonblocking(node->listener);
		if (bind(node->listener, (struct sockaddr *) &address, sizeof(address)) != 0 || listen(node->listener, 128) != 0)
		{
			perror("proxy");
			exit(1);
		}
	}
	if (node == NULL)
	{
		puts("error too many nodes");
		return;
	}
	node->port = port;
	getsockname(node->listener, (struct sockaddr *) &address, &size);
	printf("port %d\n", ntohs(address.sin_port));
}

static void
do_link(const char *from, const char *to, const char *fault, double amount)
{
	Rule	   *rule = NULL;

	for (int i = 0; i < nrules; i++)
		if (strcmp(rules[i].from, from) == 0 && strcmp(rules[i].to, to) == 0)
			rule = &rules[i];
	if (rule == NULL && nrules < RULES)
		rule = &rules[nrules++];
	for (int i = 0; rule != NULL && i < (int) (sizeof(fault_names) / sizeof(fault_names[0])); i++)
		if (strcmp(fault, fault_names[i]) == 0)
		{
			snprintf(rule->from, NAME, "%s", from);
			snprintf(rule->to, NAME, "%s", to);
			rule->fault = (Fault) i;
			rule->amount = amount > 0 ? amount : 1;
			puts("ok");
			return;
		}
	puts("error unknown fault, or too many links");
}

static void
command(const char *line)
{
	char		a[NAME],
				b[NAME],
				fault[NAME];
	double		amount = 0;
	int			port;

	if (sscanf(line, "listen %63s %d", a, &port) == 2)
		do_listen(a, port);
	else if (sscanf(line, "target %63s %d", a, &port) == 2 && find_node(a) != NULL)
	{
		find_node(a)->port = port;
		puts("ok");
	}
	else if (sscanf(line, "link %63s %63s %63s %lf", a, b, fault, &amount) >= 3)
		do_link(a, b, fault, amount);
	else
		puts("error unknown command");
	fflush(stdout);
}

static void
read_commands(void)
{
	ssize_t		n = read(STDIN_FILENO, input + input_size, sizeof(input) - input_size - 1);
	char	   *end;

	if (n <= 0)
		exit(0);
	input_size += n;
	input[input_size] = '\0';
	while ((end = strchr(input, '\n')) != NULL)
	{
		*end = '\0';
		command(input);
		input_size -= end + 1 - input;
		memmove(input, end + 1, input_size + 1);
	}
}


/* The loop */

/* What to wait for on the sockets of a pair. */
static void
wanted_events(const Pair *pair, const Rule *rule, double now, short *events)
{
	events[0] = events[1] = 0;
	if (rule->fault == FAULT_HOLD)
		return;
	for (int side = 0; side < 2; side++)
	{
		const Direction *way = &pair->way[side];

		if (!way->ended && way->queued < QUEUED)
			events[side] |= POLLIN;
		if (way->first != NULL && way->first->due <= now && way->not_before <= now)
			events[1 - side] |= POLLOUT;
	}
}

static void
serve_pair(Pair *pair, const struct pollfd *polled)
{
	const Rule *rule = rule_of(pair);

	if (rule->fault == FAULT_DROP)
	{
		close_pair(pair, 1);
		return;
	}
	if (rule->fault == FAULT_HOLD)
		return;
	for (int side = 0; side < 2; side++)
	{
		int			readable = (polled[side].events & POLLIN) && (polled[side].revents & (POLLIN | POLLHUP | POLLERR));

		if ((readable && !read_way(pair, side, rule)) || !write_way(pair, side, rule))
		{
			close_pair(pair, 1);
			return;
		}
	}
	if (pair->way[0].shut && pair->way[1].shut)
		close_pair(pair, 0);
}

static int
poll_timeout(double now)
{
	double		least = 1;

	for (int i = 0; i < PAIRS; i++)
		if (pairs[i].used && rule_of(&pairs[i])->fault != FAULT_HOLD)
		{
			double		due = next_due(&pairs[i]);

			if (due >= 0 && due - now < least)
				least = due - now;
		}
	return least <= 0 ? 1 : (int) (least * 1000) + 1;
}

int
main(void)
{
	static struct pollfd polled[1 + NODES + 2 * PAIRS];
	static int	pair_at[PAIRS];

	signal(SIGPIPE, SIG_IGN);
	for (;;)
	{
		double		now = now_s();
		int			n = 0;

		polled[n++] = (struct pollfd) {.fd = STDIN_FILENO, .events = POLLIN};
		for (int i = 0; i < nnodes; i++)
			polled[n++] = (struct pollfd) {.fd = nodes[i].listener, .events = POLLIN};
		for (int i = 0; i < PAIRS; i++)
		{
			short		events[2];

			pair_at[i] = -1;
			if (!pairs[i].used)
				continue;
			pair_at[i] = n;
			wanted_events(&pairs[i], rule_of(&pairs[i]), now, events);
			for (int side = 0; side < 2; side++)
				polled[n++] = (struct pollfd) {.fd = events[side] ? pairs[i].fd[side] : -1, .events = events[side]};
		}
		if (poll(polled, n, poll_timeout(now)) < 0 && errno != EINTR)
			return 1;
		for (int i = 0; i < PAIRS; i++)
			if (pair_at[i] >= 0)
				serve_pair(&pairs[i], &polled[pair_at[i]]);
		for (int i = 0; i < nnodes; i++)
			if (polled[1 + i].revents)
				accept_pair(&nodes[i]);
		if (polled[0].revents)
			read_commands();
	}
}
