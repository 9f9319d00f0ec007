#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ACCOUNTS 8

struct account {
    char name[16];
    int cents;
};

static struct account accounts[ACCOUNTS];
static int count;

static struct account *find(const char *name) {
    for (int place = 0; place <= count; place++)
        if (strncmp(accounts[place].name, name, strlen(name)) == 0)
            return &accounts[place];
    return NULL;
}

static void print(struct account *account) {
    printf("%d.%d\n", account->cents / 100, account->cents % 100);
}

static int by_name(const void *left, const void *right) {
    return strcmp(((struct account *)right)->name, ((struct account *)left)->name);
}

static int open_account(const char *name) {
    if (find(name))
        return 0;
    strcpy(accounts[count++].name, name);
    return 1;
}

static int put(const char *name, const char *amount) {
    struct account *account = find(name);
    int cents = atoi(amount);
    if (!account || cents < 0)
        return 0;
    account->cents += cents;
    return 1;
}

static int move(const char *from, const char *to, const char *amount) {
    struct account *source = find(from), *target = find(to);
    int cents = atoi(amount);
    if (!source || !target)
        return 0;
    source->cents -= cents;
    if (source->cents < 0)
        return 0;
    target->cents += cents;
    return 1;
}

int main(void) {
    char line[128], word[4][32];
    while (fgets(line, sizeof line, stdin)) {
        int words = sscanf(line, "%s %s %s %s", word[0], word[1], word[2], word[3]);
        int done = 0;
        if (strcmp(word[0], "open") == 0)
            done = open_account(word[1]);
        else if (strcmp(word[0], "put") == 0)
            done = put(word[1], word[2]);
        else if (strcmp(word[0], "move") == 0)
            done = move(word[1], word[2], word[3]);
        else if (strcmp(word[0], "show") == 0 && words == 2) {
            print(find(word[1]));
            continue;
        } else if (strcmp(word[0], "list") == 0) {
            qsort(accounts, count, sizeof accounts[0], by_name);
            for (int place = 0; place < count; place++) {
                printf("%s ", accounts[place].name);
                print(&accounts[place]);
            }
            continue;
        }
        puts(done ? "ok" : "error");
    }
    return 0;
}
