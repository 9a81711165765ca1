/* The process that holds a pod's namespaces open. It is the pod's init: it reaps what others leave. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal_number) {
	(void)signal_number;
	_exit(0);
}

static void reap(int signal_number) {
	(void)signal_number;
	while (waitpid(-1, NULL, WNOHANG) > 0) {
	}
}

int main(void) {
	signal(SIGTERM, end);
	signal(SIGINT, end);
	signal(SIGCHLD, reap);
	for (;;) pause();
}
