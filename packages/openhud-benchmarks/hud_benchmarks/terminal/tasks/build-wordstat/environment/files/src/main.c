#include <stdio.h>
#include "count.h"
#include "longest.h"

int main(void) {
    struct counts counts = {0};
    struct longest longest = {0};
    int letter;
    int unused = 0;
    while ((letter = getchar()) != EOF) {
        count(&counts, letter);
        longest_add(&longest, letter);
    }
    count_end(&counts);
    longest_end(&longest);
    printf("lines %ld\nwords %ld\nbytes %ld\n", counts.lines, counts.words, counts.bytes);
    printf("longest %s %zu\n", longest.best, strlen(longest.best));
    return 0;
}
