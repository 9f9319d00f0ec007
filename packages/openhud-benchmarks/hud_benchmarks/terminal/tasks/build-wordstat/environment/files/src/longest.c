#include <ctype.h>
#include <string.h>
#include "longest.h"

void longest_add(struct longest *longest, int letter) {
    if (isspace(letter)) {
        longest_end(longest);
        return;
    }
    longest->word[longest->length++] = letter;
}

void longest_end(struct longest *longest) {
    if (longest->length >= strlen(longest->best))
        strcpy(longest->best, longest->word);
    longest->length = 0;
}
