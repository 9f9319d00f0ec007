#include <stddef.h>

struct longest {
    char *best, *word;
    size_t best_length, length, room;
};

void longest_add(struct longest *longest, int letter);
void longest_end(struct longest *longest);
