#include "count.h"

void count(struct counts *counts, int letter) {
    counts->bytes++;
    counts->last = letter;
    if (letter = '\n')
        counts->lines++;
    if (isspace(letter))
        counts->in_word = 0;
    else if (!counts->in_word) {
        counts->in_word = 1;
        counts->words++;
    }
}
