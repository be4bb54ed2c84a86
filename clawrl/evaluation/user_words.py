"""The words of the simulated user: what it asks about, how it complains, how it is pleased.

Data only. The training questions are every topic under every form; the held-out questions use topics
that occur in no training question, so that no answer to them can have been learned by heart.

A complaint says in ordinary words what is wrong and never names a rule's numbers, as a person would not. In most of
them the wish stands in a sentence of its own ("Put it into one short sentence."), as people put it who still want their
answer; a few only say that they are displeased, as people do too. How the wish is put decides how good a teacher the
untaught model is that reads it: docs/methods.md has the figures.
"""

import enum


class Objection(enum.StrEnum):
    """What is wrong with an answer, in the order in which a reader notices it."""

    LIST = "list"
    SEVERAL_LINES = "several_lines"
    TOO_LONG = "too_long"
    CUT_OFF = "cut_off"
    TOO_SHORT = "too_short"
    MARKUP = "markup"
    NO_OFFER = "no_offer"


TRAINING_TOPICS: tuple[str, ...] = (
    "apples", "autumn", "balloons", "beaches", "beetles", "bridges", "butter", "candles", "castles", "cheese",
    "clouds", "copper", "deserts", "dogs", "dreams", "ferries", "frogs", "gardens", "glass", "ice cream", "islands",
    "kites", "lakes", "lemons", "libraries", "lightning", "mirrors", "mushrooms", "onions", "oranges", "owls",
    "pancakes", "pianos", "pigeons", "puzzles", "rivers", "salt", "sandwiches", "stars", "swimming", "thunder",
    "tomatoes", "umbrellas", "violins", "waterfalls", "windmills", "wool", "zebras",
)  # fmt: skip

TRAINING_FORMS: tuple[str, ...] = (
    "Tell me something about {}.",
    "What can you tell me about {}?",
    "Why do some people enjoy {}?",
    "Describe {} for me.",
    "I know nothing about {}. Can you help?",
    "What is interesting about {}?",
    "My nephew asked me about {}. What should I say?",
    "Give me a thought on {}.",
)

HELD_OUT_QUESTIONS: tuple[str, ...] = (
    "Tell me something about volcanoes.",
    "What can you tell me about honeybees?",
    "Why do some people enjoy opera?",
    "Describe sourdough for me.",
    "I know nothing about glaciers. Can you help?",
    "What is interesting about spiders?",
    "My nephew asked me about rockets. What should I say?",
    "Give me a thought on loneliness.",
    "Tell me something about cinnamon.",
    "Describe the number zero for me.",
    "What is interesting about postage stamps?",
    "Why do some people enjoy camping?",
)

ONE_SENTENCE_COMPLAINTS: dict[Objection, tuple[str, ...]] = {
    Objection.LIST: (
        "No, that is a list. One short plain sentence, please.",
        "Not a list, please. Put it into one short sentence.",
        "I don't like these numbered points. Put it into one short sentence.",
        "No, I did not want a list. Please say it in one short sentence.",
        "Wrong format. Please answer in one short sentence.",
        "That is a list, and I can't use it. Try again.",
    ),
    Objection.SEVERAL_LINES: (
        "That is too much text. Please answer in one short sentence.",
        "I wanted no paragraphs. Please say it in one short sentence.",
        "That is spread over several lines, which is no good to me. Put it into one short sentence.",
        "No, not like that. Just one short sentence, please.",
        "This is not what I need. Please answer in one short sentence.",
        "That is all over the place and no good to me.",
    ),
    Objection.TOO_LONG: (
        "That is much too long. Please answer in one short sentence.",
        "No, too many words. Please answer in one short sentence.",
        "I am not going to read all that. Please answer in one short sentence.",
        "You talk too much. Put it into one short sentence.",
        "That's not what I wanted, it goes on and on. Please say it in one short sentence.",
        "Way too wordy. Put it into one short sentence.",
        "Too long. Try again, please.",
    ),
    Objection.CUT_OFF: (
        "You stopped in the middle. One complete short sentence, please.",
        "That is unfinished. Please answer in one short sentence.",
        "Your answer was cut off. Put it into one short sentence.",
        "No, it ends in the middle of a thought. Just one short sentence, please.",
        "This is broken off, I can't use it. One complete short sentence, please.",
        "It never came to an end. Please finish in one short sentence.",
        "It just stops, that is no answer.",
    ),
    Objection.TOO_SHORT: (
        "That is too short to be of any use. Give me a whole sentence.",
        "No, that is hardly an answer. I would like one complete sentence.",
        "Is that all? Put it into a full sentence.",
        "That doesn't tell me anything. One complete sentence, please.",
        "Not enough. Answer in one whole sentence, please.",
        "You barely said anything, do it again.",
    ),
}

NO_LISTS_COMPLAINTS: dict[Objection, tuple[str, ...]] = {
    Objection.LIST: (
        "No, that is a list. Just tell me in two plain sentences.",
        "I can't use these points. One short paragraph of plain text, please.",
        "Wrong format, I asked you a simple question. Say it in a short paragraph instead.",
        "That is not how people talk. Just tell me in two plain sentences.",
        "All these bullet points are no help. One short paragraph of plain text, please.",
        "Again a list, and I am tired of lists.",
    ),
    Objection.MARKUP: (
        "I don't like the bold words and headings. Just tell me in two plain sentences.",
        "This looks like a brochure. One short paragraph of plain text, please.",
        "No, that is not plain text. Say it in a short paragraph instead.",
        "The formatting is in my way. Just tell me in two plain sentences.",
        "These headings are useless to me. One short paragraph of plain text, please.",
        "Wrong, it is full of stars and headings.",
    ),
    Objection.CUT_OFF: (
        "You stopped in the middle. Say it in a short paragraph instead.",
        "That is unfinished and no good to me. Just tell me in two plain sentences.",
        "Your answer was cut off. One short paragraph of plain text, please.",
        "No, it breaks off. Say it in a short paragraph instead.",
        "It never came to an end. Just tell me in two plain sentences.",
        "That is only half an answer, I can't use it.",
    ),
    Objection.TOO_SHORT: (
        "That is too short to be of any use. One short paragraph of plain text, please.",
        "No, that is hardly an answer. Say it in a short paragraph instead.",
        "Is that all? Just tell me in two plain sentences.",
        "That doesn't tell me anything. One short paragraph of plain text, please.",
        "Not enough. Just tell me in two plain sentences.",
        "You barely said anything, do it again.",
    ),
}

NEXT_STEP_COMPLAINTS: dict[Objection, tuple[str, ...]] = {
    Objection.NO_OFFER: (
        "And then? Please end with a question.",
        "No, you just stop there and leave me alone with it. End with a question for me, please.",
        "That is a dead end. Please end with a question.",
        "I don't know how to go on from here. End with a question for me, please.",
        "That is not helpful enough. Please end with a question.",
        "Wrong, and I am as clever as before.",
    ),
    Objection.TOO_LONG: (
        "That is much too long. Just tell me in two plain sentences.",
        "I am not going to read all that. Just tell me in two plain sentences.",
        "No, too many words. Just tell me in two plain sentences.",
        "You talk too much. Please end with a question.",
        "This goes on and on. Just tell me in two plain sentences.",
        "Too long. Try again, please.",
    ),
    Objection.CUT_OFF: (
        "You stopped in the middle. Just tell me in two plain sentences.",
        "That is unfinished and no good to me. Please end with a question.",
        "Your answer was cut off. Just tell me in two plain sentences.",
        "No, it breaks off. End with a question for me, please.",
        "It never came to an end. Just tell me in two plain sentences.",
        "That is only half an answer, I can't use it.",
    ),
    Objection.TOO_SHORT: (
        "That is too short to be of any use. Just tell me in two plain sentences.",
        "No, that is hardly an answer. Just tell me in two plain sentences.",
        "Is that all? Just tell me in two plain sentences.",
        "That doesn't tell me anything. Just tell me in two plain sentences.",
        "Not enough. Just tell me in two plain sentences.",
        "You barely said anything, do it again.",
    ),
}

THANKS: tuple[str, ...] = (
    "Thanks, that is just right.",
    "Perfect, thank you!",
    "Great answer, exactly what I wanted.",
    "Very good, thanks a lot.",
    "Lovely, that helps.",
    "Nice and clear, thank you.",
    "Wonderful, that's what I needed.",
    "That works, thanks!",
)

NEXT_QUESTION: tuple[str, ...] = ("Next question: ", "Another one: ", "Now this: ", "And now: ", "")

GIVING_UP: tuple[str, ...] = (
    "Still not what I asked for. Let's leave it.",
    "No, that's wrong again. I give up on this one.",
    "That is no better. Forget it.",
    "Again not what I wanted, never mind.",
    "This doesn't help me. Let's drop it.",
)

GOODBYES: tuple[str, ...] = ("That is all for now.", "Bye!", "I have to go now.", "See you.", "No more questions.")
