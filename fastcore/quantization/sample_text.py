"""What a quantised model is measured on where nothing else is given, written for this purpose."""

__all__ = ["SAMPLE_RECORDS", "SAMPLE_TEXT"]

SAMPLE_TEXT = '''\
The ferry left the harbour a little after seven, when the fog had thinned enough to show the first of the
islands. Marta stood at the rail with a paper cup of coffee that had long gone cold, and counted the buoys as
her father had taught her: red to the right when you come home, green when you leave. Nobody had told her that
the house would be empty. The letter from the lawyer had arrived on a Tuesday, three pages in a language so
careful that she had to read it twice before she understood that it was about her, and that the key was in the
envelope.

"Are you visiting family?" asked the man beside her.

"In a way," she said. "My grandmother lived on the north shore. She kept bees, and wrote letters to the
newspaper about the price of stamps."

He laughed. "I think I remember those. She was right about most of it, you know."

Salt is one of the oldest goods that people traded over long distances. Before refrigeration, it was the
simplest way to keep meat and fish through the winter, and cities that controlled a salt mine or a stretch of
coast with shallow ponds grew rich. Sea water holds about 35 grams of salt per litre; in a warm and windy place,
a pond of one hectare can yield several dozen tonnes in a season. Governments noticed early. In France the tax
on salt, the gabelle, was so hated that it became one of the causes of the revolution of 1789, and in 1930
Mohandas Gandhi walked 390 kilometres to the sea to make a handful of it himself.

To find the greatest common divisor of two numbers, divide the larger by the smaller and keep the remainder;
then divide the smaller by that remainder, and so on until nothing is left. The last remainder that is not zero
is the answer. For 252 and 105 this gives 252 = 2 * 105 + 42, 105 = 2 * 42 + 21, and 42 = 2 * 21 + 0, so that
the greatest common divisor is 21. In Python:

```python
def gcd(a: int, b: int) -> int:
    """Return the greatest common divisor of two integers."""
    while b:
        a, b = b, a % b
    return abs(a)


class Inventory:
    def __init__(self):
        self.items = {}

    def add(self, name, count=1):
        if count < 0:
            raise ValueError("count must not be negative")
        self.items[name] = self.items.get(name, 0) + count

    def total(self):
        return sum(self.items.values())


if __name__ == "__main__":
    stock = Inventory()
    for word in ["apple", "pear", "apple", "plum"]:
        stock.add(word)
    print(stock.total(), sorted(stock.items.items()))
```

Question: Which planet of the solar system has the most moons, and why is the number hard to state?
Answer: Saturn has the most known moons, well over one hundred. The number is hard to state because new small
moons are found every few years, and because there is no clear line between a small moon and a large piece of a
ring.

Ingredients for four people: 400 g of flour, 2 eggs, 250 ml of milk, a pinch of salt, and butter for the pan.
Mix the flour and the salt, add the eggs and half of the milk, and stir until the dough is smooth. Then add the
rest of the milk and let it stand for twenty minutes. Bake thin pancakes in a hot pan, one minute on each side,
and keep them warm under a cloth.

Dear Ms. Okafor,
thank you for your application for the position of laboratory assistant. We were impressed by your experience
with water samples and would like to invite you to an interview on Thursday, 14 March, at 10:30. Please bring a
copy of your certificates. If the date does not suit you, call us at the number below, and we will find another.
We look forward to meeting you.

Le train de nuit arrive à Lyon vers six heures du matin. Il fait encore sombre, et les premiers cafés ouvrent
leurs portes. Der Zug hatte zwanzig Minuten Verspätung, aber niemand schien sich darüber zu ärgern. El museo
abre a las diez y cierra a las seis, excepto los lunes.

| city | population | area in square kilometres |
|---|---|---|
| Lisbon | 545,000 | 100 |
| Vienna | 1,980,000 | 415 |
| Copenhagen | 644,000 | 86 |

SELECT name, COUNT(*) AS orders FROM customers JOIN orders ON orders.customer_id = customers.id
WHERE orders.created_at >= '2024-01-01' GROUP BY name HAVING COUNT(*) > 5 ORDER BY orders DESC;

The engineer looked at the bridge for a long time before she answered. The cables were sound, the towers were
sound, and the deck had been replaced only four years ago. And yet, when the wind came from the west at a
certain speed, the whole structure began to hum like a string. "It is not dangerous," she said at last. "But it
is trying to tell us something, and I would like to know what it is before the winter." They closed the road for
two nights, hung weights from the rail at nine places, and measured. On the third morning the hum was gone, and
so was half of the budget.
'''

# Lines with personal data, all of it invented, for token classifiers
SAMPLE_RECORDS = (
    "My name is Ada Quill and I live at 14 Harbour Lane, Whitby.",
    "Please call Tomas Berg on +44 20 7946 0018 or write to t.berg@example.org before Friday.",
    "The meeting is at ten; bring the report and the two samples.",
    "Invoice 2031 was paid from account DE89 3704 0044 0532 0130 00 on 3 May 2024.",
    "Patient: Maria Okafor, born 1971-11-30, seen by Dr. Lin in room 5.",
    "See https://example.com/profile/ada-quill for her list of talks.",
    "The password for the old printer is still hunter2, which nobody likes.",
    "Salt is one of the oldest goods that people traded over long distances.",
    "From: Jean Petit <jean.petit@example.fr> To: support. Subject: my order 88-1203",
    "Card 4111 1111 1111 1111, expires 09/27, in the name of P. Novak.",
    "He moved from 220 Elm Street, Springfield, to Vienna in March.",
    "Nothing in this line is private, and no name is named.",
    "Frau Schneider (Tel. 030 5550100) hat am 12. Juni einen Termin.",
    "Contact Wei Zhang or his sister Li at the usual number, 555-0100, extension 7.",
)
