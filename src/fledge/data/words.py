"""Words that fill the openings' `{placeholders}`."""

from __future__ import annotations


def _split(words: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in words.split(","))


# Given names of many languages, common things: the prompt's subject, not its substance.
PLACEHOLDERS: dict[str, tuple[str, ...]] = {
    "name": _split(
        "Ada, Aisha, Alan, Alex, Alice, Amara, Amir, Ana, Andre, Anya, Arjun, Aron, Astrid, Ben, Bianca, "
        "Boris, Carla, Carlos, Carmen, Chen, Chloe, Clara, Dana, Daniel, David, Diego, Dora, Elena, Eli, "
        "Ella, Emil, Emma, Eric, Esther, Fatima, Felix, Fiona, Frank, Gina, Grace, Greta, Hana, Hannah, "
        "Hassan, Helen, Henry, Hugo, Ian, Ines, Isaac, Ivan, Ivy, Jack, James, Jamal, Jane, Jasmine, Javier, "
        "Jing, Joan, John, Jonas, Julia, Karen, Kate, Kenji, Kofi, Lara, Laura, Leila, Leo, Lena, Liam, Lily, "
        "Lin, Lucas, Lucy, Luis, Maria, Mark, Marta, Max, Maya, Mei, Mia, Mike, Mila, Nadia, Nathan, Nina, "
        "Noah, Nora, Olga, Oliver, Omar, Oscar, Paul, Pedro, Peter, Priya, Rachel, Raj, Rita, Robert, Rosa, "
        "Ruth, Sam, Sara, Sofia, Sonia, Stefan, Susan, Tara, Theo, Tim, Tom, Uma, Vera, Victor, Wei, Will, "
        "Yara, Yuki, Yusuf, Zoe"
    ),
    "object": _split(
        "apples, oranges, pencils, books, marbles, stickers, cookies, cupcakes, eggs, flowers, tickets, "
        "coins, cards, balloons, shirts, shoes, toys, bottles of water, boxes, chairs, candles, bags of rice, "
        "pizzas, sandwiches, notebooks, crayons, fish, chickens, cows, trees, stamps, shells, buttons, "
        "bracelets, loaves of bread, lemons, peaches, tomatoes, bricks, tiles, cars, bicycles, lamps, cakes, "
        "muffins, stones, seeds, plants, puzzles, pens"
    ),
    "place": _split(
        "the coast, a small town, the mountains, Japan, Italy, Mexico, Canada, Kenya, India, Portugal, "
        "Greece, Peru, Norway, Vietnam, Morocco, Turkey, Brazil, Iceland, the desert, an island, the "
        "countryside, a big city"
    ),
    "job": _split(
        "teacher, nurse, chef, farmer, dentist, doctor, carpenter, pilot, detective, journalist, librarian, "
        "lawyer, musician, painter, gardener, plumber, manager, student, scientist, photographer, baker, tour "
        "guide, historian, coach, designer, software developer, therapist, travel agent, fitness trainer, "
        "tailor, poet, ship captain, wizard, robot, knight, shopkeeper, data analyst, banker, "
        "firefighter, mechanic"
    ),
    "number": tuple(
        str(number) for number in (*range(3, 31), 32, 36, 40, 45, 48, 50, 60, 64, 72, 75, 80, 90, 100, 120)
    ),
    "topic": _split(
        "photosynthesis, gravity, the water cycle, volcanoes, earthquakes, black holes, the solar system, "
        "vaccines, antibiotics, genetics, evolution, the immune system, the heart, sleep, memory, nutrition, "
        "exercise, stress, climate change, renewable energy, electricity, magnets, batteries, solar panels, "
        "wind power, recycling, computers, the internet, machine learning, encryption, robots, smartphones, "
        "social media, video games, space travel, satellites, bridges, airplanes, trains, electric cars, "
        "architecture, chemistry, acids and bases, metals, plastics, algebra, statistics, probability, "
        "geometry, economics, inflation, taxes, banking, insurance, stocks, small business, marketing, "
        "leadership, negotiation, teamwork, remote work, education, reading, languages, grammar, poetry, "
        "novels, theatre, film, photography, painting, sculpture, music, jazz, opera, dance, fashion, "
        "cooking, baking, coffee, tea, chocolate, cheese, gardening, bees, birds, whales, dogs, cats, horses, "
        "forests, oceans, rivers, deserts, rainforests, farming, ancient Egypt, the Roman Empire, ancient "
        "Greece, the Middle Ages, the Renaissance, the Industrial Revolution, the French Revolution, the Silk "
        "Road, democracy, human rights, law, elections, philosophy, ethics, religion, mythology, psychology, "
        "friendship, parenting, happiness, meditation, yoga, running, football, tennis, chess, hiking, "
        "camping, travel, museums, public transport, housing, volunteering, journalism, advertising, cultural "
        "festivals, weddings, holidays"
    ),
    "code_task": _split(
        "read a file, sort a list, parse JSON, connect to a database, reverse a string, count words, download "
        "a file, handle errors, loop over a dictionary, merge two lists, rename files, send a request, plot "
        "data, write a test, remove duplicates, format a date, validate input, split a string, convert a "
        "number, build a form, find a file, log messages, resize images, schedule a job, cache results, "
        "compare two files"
    ),
    "language": _split("Python, JavaScript, Java, C, C++, Go, Rust, Ruby, TypeScript, Bash, PHP, R, Swift"),
    "human_language": _split("French, Spanish, German, Italian, Portuguese"),
}

_SIGNATURES = """
count_words(text: str) -> int
is_sorted(numbers: list[int]) -> bool
merge_lists(first: list, second: list) -> list
find_largest(values)
sum_digits(n: int) -> int
reverse_list(items: List[int]) -> List[int]
has_duplicates(items: list) -> bool
remove_spaces(s)
average(numbers: List[float]) -> float
flatten(nested: list) -> list
upper_words(words: List[str]) -> List[str]
count_even(lst)
nth_power(base: int, n: int) -> int
unique_elements(lst: list)
max_difference(arr)
rotate_left(items: list, k: int) -> list
split_text(text: str, size: int) -> List[str]
find_index(lst, target)
longest_run(s: str) -> int
common_items(a, b)
to_minutes(time: str) -> int
parse_line(line: str) -> dict
format_name(first: str, last: str) -> str
days_between(start, end)
group_by_length(words)
second_smallest(nums)
same_letters(a: str, b: str) -> bool
search(values: List[int], target: int) -> int
divisors(n)
sum_of_squares(n: int) -> int
first_repeated(s: str) -> str
sort_by_key(rows: List[dict], key: str) -> List[dict]
replace_all(text: str, old: str, new: str) -> str
interleave(a: list, b: list)
capitalize_first(text: str) -> str
product_of(numbers)
index_of_minimum(values: List[int]) -> int
shift_letters(text: str, k: int) -> str
matrix_sum(matrix: List[List[int]]) -> int
transpose_rows(rows)
digits_only(s: str) -> str
count_occurrences(lst: list, value) -> int
letters_in_common(a: str, b: str) -> int
pairs_with_sum(nums: List[int], total: int)
lowest_cost(prices: List[int]) -> int
next_multiple(n: int, k: int) -> int
starts_with_any(text, prefixes)
trim_ends(lst, n)
largest_gap(numbers: List[int]) -> int
running_total(lst)
area(width: float, height: float) -> float
leap_years(start: int, end: int) -> int
clamp(value, low, high)
weighted_sum(values: List[float], weights: List[float]) -> float
closest_value(lst: List[int], target: int) -> int
count_upper(s)
every_other(items)
join_numbers(numbers: List[int]) -> str
power_of_two(n: int) -> bool
letter_grade(score: int) -> str
"""
PLACEHOLDERS["signature"] = tuple(_SIGNATURES.strip().splitlines())
PLACEHOLDERS["function"] = tuple(signature.split("(")[0] for signature in PLACEHOLDERS["signature"])
