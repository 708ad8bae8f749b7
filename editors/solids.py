"""The nouns that the classical editor can insert, each with how to build, place and shade it.

ReKey (Sec. 3.3) adds an object that people marked as plausible in a box.  `SOLIDS` holds the ones
we can draw; `find_solid` finds one by what an annotator wrote.  A solid's own fields are all that
the renderer knows about a noun.

    solid = find_solid("kick scooters")            # SOLIDS["scooter"]; None where we cannot draw it
    parts = solid.build(Points(x, y, z))           # [(distance, material), ...]
    yaw = rng.uniform(*solid.yaw)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from editors import solids_animals as animals
from editors import solids_street as street
from editors import solids_things as things
from editors import solids_vehicles as vehicles
from editors import solids_water as water
from editors.sdf import KEY_MATERIALS, Material, Part, Points
from rekey.references import singular

__all__ = ["KEY_MATERIALS", "SOLIDS", "Material", "Part", "Placement", "Points", "Solid", "find_solid",
           "known_nouns"]

Placement = Literal["standing", "wall", "air", "water"]


@dataclass(frozen=True)
class Solid:
    """One noun: its shape, where it belongs, and how its surface takes the light."""

    name: str
    build: Callable[[Points], list[Part]]
    """Points in object units (x forward, y up, ground y = 0) -> the parts' distances and materials."""
    synonyms: tuple[str, ...] = ()
    """Other singular nouns for the same thing."""
    placement: Placement = "standing"
    """Where it belongs: on the ground or a table, flat on a wall, hanging in the air, or on water.
    What belongs on water also stands ashore, where a photo has no water."""
    yaw: tuple[float, float] = (-55.0, -18.0)
    """Degrees from which it is easily named.  At 0 its front (+x) points right in the picture, at
    -90 toward the viewer."""
    elevation: float | None = None
    """Degrees above the horizon of a view that flatters it; None: whatever the photo suggests."""
    waterline: float | None = None
    """Height at which the water cuts it when it floats; None: it does not float."""
    airborne: str | None = None
    """The solid to draw instead when the box hangs in the air."""
    afloat: str | None = None
    """The solid to draw instead when the box lies on water."""
    gloss: float = 0.25
    """Strength of the highlight, 0 for chalk to 1 for chrome."""
    translucency: float = 0.0
    """Fraction of the light that passes through: cloth and petals lit from behind do not turn black."""
    fur: float = 0.0
    """0..1: how much the normals and the albedo are roughened at the scale of hair."""
    striped_fur: bool = False
    cloth: float = 0.0
    """0..1: how much the normals are softly rumpled."""
    shadow_scale: float = 1.0
    """Weight of its shadow; thin things get less, or their shadow outvotes their color."""


_WALL_YAW = (-9.0, 9.0)
_POLE_YAW = (-20.0, 5.0)
_FRONT_YAW = (-38.0, -12.0)     # for things whose face, not whose side, is toward +z
_DRIVE_YAW = (-48.0, -20.0)     # end-on a vehicle has no outline

_ALL = (
    # animals
    Solid("cat", animals.cat, ("kitten", "kitty"), gloss=0.02, fur=1.0, striped_fur=True),
    Solid("dog", animals.dog, ("puppy", "doggy"), gloss=0.02, fur=1.0),
    Solid("mouse", animals.mouse, fur=1.0, gloss=0.05),
    Solid("rabbit", animals.rabbit, ("bunny", "hare", "bunny rabbit"), gloss=0.02, fur=1.0),
    Solid("squirrel", animals.squirrel, gloss=0.02, fur=1.0),
    Solid("bird", animals.bird, ("songbird",), gloss=0.03, fur=0.5, airborne="gliding bird"),
    Solid("gliding bird", animals.gliding_bird, ("flying bird",), placement="air", yaw=(-62.0, -46.0),
          gloss=0.03),
    Solid("duck", animals.duck, ("rubber duck", "toy duck", "duckling", "rubber ducky"),
          placement="water", waterline=0.12),
    Solid("swan", animals.swan, placement="water", waterline=0.1, gloss=0.05),
    Solid("crab", animals.crab, yaw=(-25.0, 25.0)),
    Solid("butterfly", animals.butterfly, placement="air", yaw=(-35.0, -10.0), gloss=0.05, translucency=0.6),
    Solid("shell", animals.shell, ("seashell", "sea shell", "scallop", "scallop shell"), yaw=(-30.0, 10.0),
          gloss=0.15),
    # things with wheels or tracks
    Solid("scooter", vehicles.scooter, ("kick scooter", "push scooter", "kickscooter"), shadow_scale=0.65),
    Solid("stroller", vehicles.stroller, ("baby stroller", "pram", "baby carriage", "pushchair", "buggy"),
          gloss=0.05, cloth=0.5, shadow_scale=0.65),
    Solid("bicycle", vehicles.bicycle, ("bike", "push bike", "pushbike", "cycle"), yaw=_DRIVE_YAW,
          shadow_scale=0.65),
    Solid("motorcycle", vehicles.motorcycle, ("motorbike", "motor bike"), yaw=_DRIVE_YAW, shadow_scale=0.8),
    Solid("wheelchair", vehicles.wheelchair, gloss=0.1, shadow_scale=0.65),
    Solid("car", vehicles.car, ("sedan", "automobile", "passenger car"), yaw=_DRIVE_YAW),
    Solid("suv", vehicles.suv, ("jeep", "minivan", "station wagon", "off road vehicle"), yaw=_DRIVE_YAW),
    Solid("bus", vehicles.bus, ("coach", "city bus", "minibus", "school bus"), yaw=_DRIVE_YAW),
    Solid("fire truck", vehicles.fire_truck, ("fire engine", "firetruck"), yaw=_DRIVE_YAW),
    Solid("ambulance", vehicles.ambulance, yaw=_DRIVE_YAW),
    Solid("garbage truck", vehicles.garbage_truck, ("trash truck", "refuse truck", "bin lorry"),
          yaw=(136.0, 152.0)),
    Solid("food truck", vehicles.food_truck, ("food van", "ice cream truck", "ice cream van"),
          yaw=(-40.0, -18.0)),
    Solid("tank", vehicles.tank, ("battle tank", "army tank", "military tank"), yaw=_DRIVE_YAW, gloss=0.1),
    # things that float
    Solid("boat", water.boat, ("sailboat", "sailing boat", "sail boat"), placement="water", waterline=0.08),
    Solid("speedboat", water.speedboat, ("speed boat", "motorboat", "motor boat", "powerboat"),
          placement="water", waterline=0.1),
    Solid("kayak", water.kayak, placement="water", waterline=0.06, yaw=(-55.0, -25.0)),
    Solid("jet ski", water.jet_ski, ("jetski", "water scooter", "personal watercraft"), placement="water",
          waterline=0.1),
    Solid("lifebuoy", water.lifebuoy, ("life buoy", "lifebelt", "life belt", "life ring", "life preserver"),
          placement="water", yaw=(-40.0, 10.0), waterline=0.12, afloat="swim ring"),
    Solid("swim ring", water.swim_ring, ("float", "swimming ring", "inflatable ring", "inner tube"),
          placement="water", waterline=0.1),
    # on the street
    Solid("bench", street.bench, ("park bench",), yaw=_FRONT_YAW, gloss=0.1, shadow_scale=0.8),
    Solid("fire hydrant", street.fire_hydrant, ("hydrant",), yaw=(-35.0, -8.0)),
    Solid("mailbox", street.mailbox, ("postbox", "post box", "letterbox", "letter box", "mail box"),
          yaw=(-58.0, -32.0)),
    Solid("road barrier", street.road_barrier, ("barrier", "barricade", "traffic barrier", "roadblock"),
          yaw=_FRONT_YAW, shadow_scale=0.8),
    Solid("traffic cone", street.traffic_cone, ("cone", "road cone", "safety cone")),
    Solid("sign", street.sign, ("road sign", "street sign", "traffic sign", "signpost"), yaw=_POLE_YAW,
          elevation=8.0, shadow_scale=0.8),
    Solid("phone booth", street.phone_booth, ("telephone booth", "phone box", "telephone box"),
          yaw=(-40.0, -15.0)),
    Solid("pavilion", street.pavilion, ("gazebo", "bandstand"), elevation=10.0),
    Solid("rock", street.rock, ("stone", "boulder"), gloss=0.03, fur=0.35),
    Solid("flag", street.flag, yaw=_POLE_YAW, elevation=8.0, gloss=0.02, translucency=0.85, cloth=0.3),
    # for a day out
    Solid("umbrella", street.umbrella, ("parasol",), gloss=0.12, translucency=0.55, cloth=0.3),
    Solid("beach chair", street.beach_chair, ("deck chair", "deckchair"), yaw=(-48.0, -22.0),
          gloss=0.03, translucency=0.4, cloth=0.3, shadow_scale=0.8),
    Solid("sun lounger", street.sun_lounger, ("lounger", "sunbed", "sun bed", "lounge chair"),
          yaw=(-48.0, -20.0), gloss=0.05, cloth=0.3),
    Solid("balloon", street.balloon, placement="air", translucency=0.25),
    Solid("kite", street.kite, placement="air", yaw=(-30.0, 10.0), gloss=0.05, translucency=0.8),
    # vessels, bags, boxes
    Solid("bottle", things.bottle, ("water bottle", "wine bottle", "glass bottle", "plastic bottle")),
    Solid("can", things.can, ("soda can", "drink can", "beer can", "tin can", "pop can", "tin"), gloss=0.3),
    Solid("bucket", things.bucket, ("pail",)),
    Solid("cup", things.cup, ("mug", "coffee cup", "coffee mug", "tea cup", "teacup")),
    Solid("bowl", things.bowl, ("salad bowl",)),
    Solid("flower pot", things.flower_pot, ("flowerpot", "plant pot", "potted plant", "planter"), gloss=0.08),
    Solid("bag", things.bag, ("handbag", "hand bag", "purse", "shopping bag", "tote bag", "shoulder bag"),
          gloss=0.1, cloth=0.4),
    Solid("backpack", things.backpack, ("rucksack", "school bag", "schoolbag"), gloss=0.05, cloth=0.5),
    Solid("box", things.cardboard_box, ("cardboard box", "carton", "package", "parcel"), gloss=0.02),
    Solid("suitcase", things.suitcase, ("luggage", "trolley case", "rolling suitcase")),
    # small things and furniture
    Solid("phone", things.phone, ("smartphone", "cell phone", "cellphone", "mobile phone"),
          yaw=(-42.0, -12.0)),
    Solid("flower", things.flower, ("blossom", "daisy"), yaw=(-35.0, 10.0), gloss=0.05, translucency=0.6,
          shadow_scale=0.65),
    Solid("glove", things.glove, yaw=(-25.0, 12.0), gloss=0.03, cloth=0.4),
    Solid("key", things.key, ("door key", "house key"), yaw=(-20.0, 15.0), gloss=0.12),
    Solid("wrench", things.wrench, ("spanner",), yaw=(-20.0, 15.0), gloss=0.12),
    Solid("clock", things.clock, ("wall clock",), placement="wall", yaw=_WALL_YAW),
    Solid("poster", things.poster, ("placard",), placement="wall", yaw=_WALL_YAW, gloss=0.1,
          translucency=0.5),
    Solid("socket", things.socket, ("power socket", "outlet", "power outlet", "wall socket"),
          placement="wall", yaw=_WALL_YAW),
    Solid("pillow", things.pillow, ("cushion",), yaw=(-32.0, -8.0), gloss=0.03, cloth=0.5),
    Solid("broom", things.broom, ("broomstick",), yaw=(-25.0, 15.0), gloss=0.1, shadow_scale=0.8),
    Solid("ball", things.ball, ("toy ball",)),
    Solid("chair", things.chair, ("wooden chair", "kitchen chair")),
)

SOLIDS: Mapping[str, Solid] = MappingProxyType({solid.name: solid for solid in _ALL})
"""Every solid by its own name."""

_BY_NOUN: Mapping[str, Solid] = MappingProxyType(
    {noun: solid for solid in _ALL for noun in (solid.name, *solid.synonyms)})

def known_nouns() -> tuple[str, ...]:
    """Every noun `find_solid` knows in the singular, names and synonyms, sorted."""
    return tuple(sorted(_BY_NOUN))


def find_solid(noun: str) -> Solid | None:
    """The solid that a noun names, whatever its case, hyphens, article or number; else None."""
    words = noun.lower().replace("-", " ").replace("_", " ").split()
    if words and words[0] in ("a", "an", "the"):
        words = words[1:]
    if not words:
        return None
    for last in (words[-1], singular(words[-1])):
        solid = _BY_NOUN.get(" ".join([*words[:-1], last]))
        if solid is not None:
            return solid
    return None
