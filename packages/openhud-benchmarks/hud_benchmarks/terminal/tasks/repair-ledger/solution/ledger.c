#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME 31
#define MOST 1000000000000000LL

struct account {
    char name[NAME + 1];
    long long cents;
};

static struct account *accounts;
static size_t count, room;

static struct account *find(const char *name) {
    for (size_t place = 0; place < count; place++)
        if (strcmp(accounts[place].name, name) == 0)
            return &accounts[place];
    return NULL;
}

static void print(const struct account *account) {
    printf("%lld.%02lld\n", account->cents / 100, account->cents % 100);
}

static int by_name(const void *left, const void *right) {
    return strcmp(((const struct account *)left)->name, ((const struct account *)right)->name);
}

/* Returns an amount, or 0 for anything that is none. */
static long long amount(const char *text) {
    long long cents = 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return 0;
        cents = 10 * cents + (*text - '0');
        if (cents > MOST)
            return 0;
    }
    return cents;
}

static int open_account(const char *name) {
    if (strlen(name) > NAME || find(name))
        return 0;
    if (count == room) {
        room = room ? 2 * room : 64;
        accounts = realloc(accounts, room * sizeof *accounts);
        if (!accounts)
            abort();
    }
    strcpy(accounts[count].name, name);
    accounts[count++].cents = 0;
    return 1;
}

static int put(const char *name, const char *text) {
    struct account *account = find(name);
    long long cents = amount(text);
    if (!account || !cents)
        return 0;
    account->cents += cents;
    return 1;
}

static int move(const char *from, const char *to, const char *text) {
    struct account *source = find(from), *target = find(to);
    long long cents = amount(text);
    if (!source || !target || source == target || !cents || source->cents < cents)
        return 0;
    source->cents -= cents;
    target->cents += cents;
    return 1;
}

int main(void) {
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, stdin) >= 0) {
        char *word[5];
        int words = 0, done = 0;
        for (char *next = strtok(line, " \t\r\n"); next && words < 5; next = strtok(NULL, " \t\r\n"))
            word[words++] = next;
        if (!words)
            continue;
        if (strcmp(word[0], "open") == 0 && words == 2)
            done = open_account(word[1]);
        else if (strcmp(word[0], "put") == 0 && words == 3)
            done = put(word[1], word[2]);
        else if (strcmp(word[0], "move") == 0 && words == 4)
            done = move(word[1], word[2], word[3]);
        else if (strcmp(word[0], "show") == 0 && words == 2 && find(word[1])) {
            print(find(word[1]));
            continue;
        } else if (strcmp(word[0], "list") == 0 && words == 1) {
            qsort(accounts, count, sizeof *accounts, by_name);
            for (size_t place = 0; place < count; place++) {
                printf("%s ", accounts[place].name);
                print(&accounts[place]);
            }
            continue;
        }
        puts(done ? "ok" : "error");
    }
    return 0;
}
