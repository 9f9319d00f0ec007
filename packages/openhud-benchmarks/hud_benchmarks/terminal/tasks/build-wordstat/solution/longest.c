#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include "longest.h"

void longest_add(struct longest *longest, int letter) {
    if (isspace(letter)) {
        longest_end(longest);
        return;
    }
    if (longest->length == longest->room) {
        longest->room = longest->room ? 2 * longest->room : 64;
        longest->word = realloc(longest->word, longest->room);
        if (!longest->word)
            abort();
    }
    longest->word[longest->length++] = (char)letter;
}

void longest_end(struct longest *longest) {
    if (longest->length > longest->best_length) {
        free(longest->best);
        longest->best = malloc(longest->length + 1);
        if (!longest->best)
            abort();
        memcpy(longest->best, longest->word, longest->length);
        longest->best[longest->length] = 0;
        longest->best_length = longest->length;
    }
    longest->length = 0;
}
